"""What a writer tells of its position when it notes its time: never less than what it has written."""

from __future__ import annotations

import httpx
import pytest
from scripted_cluster import Cluster

from headrace.client import AsyncHeadrace, WriterOptions

NAMED = WriterOptions(writer_id="w-1")


def test_the_position_is_behind_everything_acknowledged(cluster: Cluster) -> None:
    with cluster.client() as client, client.writer("s", "t", NAMED) as writer:
        writer.note_time(1)
        writer.write_batch([b"event"] * 20, [str(number) for number in range(20)])
        writer.note_time(2)
        lengths = {identifier: len(segment.data) for identifier, segment in cluster.segments.items()}
        assert cluster.notes == [("w-1", 1, {0: 0, 1: 0}), ("w-1", 2, lengths)]
        assert all(lengths.values())
    assert cluster.removed_writers == ["w-1"]


def test_a_writer_that_never_noted_its_time_is_not_removed(cluster: Cluster) -> None:
    with cluster.client() as client, client.writer("s", "t") as writer:
        writer.write(b"event")
    assert cluster.removed_writers == []


def test_position_after_a_reconnect_is_the_tail(cluster: Cluster) -> None:
    """The store says up to which event it has stored, not where that is."""
    with cluster.client() as client, client.writer("s", "t", NAMED) as writer:
        cluster.after_append = lambda number: number == 1
        writer.write(b"mine", "key")
        writer.flush()
        cluster.put(0, b"of others")
        cluster.put(1, b"of others")
        writer.note_time(1)
        ends = {identifier: len(segment.data) for identifier, segment in cluster.segments.items()}
        assert cluster.notes == [("w-1", 1, ends)]
        writer.write(b"mine", "key")
        writer.note_time(2)
        later = {identifier: len(segment.data) for identifier, segment in cluster.segments.items()}
        assert cluster.notes[1] == ("w-1", 2, later)


def test_a_scale_that_the_writer_has_not_seen(cluster: Cluster) -> None:
    """A later note must not know less than the one before it."""
    with cluster.client() as client, client.writer("s", "t", NAMED) as writer:
        cluster.after_append = lambda number: number == 1
        writer.write(b"mine", "key")
        writer.flush()
        (mine,) = (identifier for identifier, segment in cluster.segments.items() if segment.data)
        low, high = cluster.segments[1 - mine].key_range.low, cluster.segments[1 - mine].key_range.high
        (new,) = cluster.scale([1 - mine], [(low, high)])
        writer.note_time(1)
        assert cluster.notes[-1][2] == {mine: len(cluster.segments[mine].data), new: 0}
        writer.write(b"mine", "key")
        writer.note_time(2)
        assert cluster.notes[-1][2] == {mine: len(cluster.segments[mine].data), 1 - mine: 0, new: 0}


@pytest.mark.anyio
async def test_asynchronous_writer_notes_its_time(cluster: Cluster) -> None:
    transport = httpx.MockTransport(cluster.handle)
    async with AsyncHeadrace("http://controller", transport=transport) as client:
        async with await client.writer("s", "t", NAMED) as writer:
            await writer.write(b"event", "key")
            await writer.note_time(-5)
        await client.admin.watermarks.note_position("s", "t", "w-2", 7, {0: 3})
    ((writer, time, position), other) = cluster.notes
    assert (writer, time) == ("w-1", -5)
    assert sorted(position.values()) == [0, 13]
    assert other == ("w-2", 7, {0: 3})
    assert cluster.removed_writers == ["w-1"]

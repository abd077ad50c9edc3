"""A reader hands out every event once, in order per key, from any position to any position."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

import httpx
import pytest
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import (
    AsyncHeadrace,
    CorruptError,
    Headrace,
    InvalidRequestError,
    ReaderOptions,
    StreamCut,
    TruncatedError,
    UnavailableError,
    WriterOptions,
)
from headrace.client.reading import segment_stream
from headrace.wire import framing

Make = Callable[[int], Cluster]


def _by_key(events: list[bytes]) -> dict[str, list[int]]:
    numbers_by_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        numbers_by_key[key].append(int(number))
    return dict(numbers_by_key)


def _fill(cluster: Cluster, headrace: Headrace, *, scales: bool = True, keys: int = 10, per_key: int = 90) -> None:
    with headrace.writer("s", "t", WriterOptions(block_bytes=300, buffer_bytes=50_000)) as writer:
        for number in range(per_key):
            for key in range(keys):
                writer.write(f"k{key}:{number}".encode(), f"k{key}")
            if scales and number == 30:
                cluster.scale([0], [(0.0, 0.25), (0.25, 0.5)])
            if scales and number == 60:
                left, middle = (identifier for identifier in cluster.segments if identifier >> 32 == 1)
                cluster.scale([left, middle, 1], [(0.0, 0.4), (0.4, 1.0)])


EVERYTHING = {f"k{key}": list(range(90)) for key in range(10)}


def test_from_the_head_to_the_tail_over_scales(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        tail = headrace.admin.stream_cut("s", "t")
        with headrace.reader("s", "t", start="earliest", end=tail) as reader:
            assert _by_key([read.event for read in reader]) == EVERYTHING
            assert reader.ended
            assert reader.position == tail


def test_a_sealed_stream_ends(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        cluster.seal_stream()
        with headrace.reader("s", "t") as reader:
            assert _by_key([read.event for read in reader]) == EVERYTHING
            assert reader.ended
            assert reader.read_batch() is None


@pytest.mark.parametrize("seed", range(5))
def test_stopping_and_going_on_at_the_position(cluster: Cluster, seed: int) -> None:
    dice = random.Random(seed)
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        cluster.seal_stream()
        events: list[bytes] = []
        start: StreamCut | Literal["earliest"] = "earliest"
        rounds = 0
        while rounds < 500:
            rounds += 1
            with headrace.reader("s", "t", start=start) as reader:
                for _, read in zip(range(dice.randrange(1, 60)), reader, strict=False):
                    events.append(read.event)
                start = reader.position
                _check_covers_key_space(cluster, start)
                if reader.ended:
                    break
        assert _by_key(events) == EVERYTHING
        assert rounds > 5


def test_a_start_may_be_at_ends_of_unknown_lengths(cluster: Cluster) -> None:
    """As Java readers write the position in a sealed segment that they have read."""
    with cluster.client() as headrace:
        _fill(cluster, headrace, scales=False, per_key=5)
        ends = headrace.admin.stream_cut("s", "t").offsets
        cluster.scale([0], [(0.0, 0.25), (0.25, 0.5)])
        with headrace.writer("s", "t") as writer:
            for key in range(10):
                writer.write(b"k%d:after" % key, f"k{key}")
        tail = headrace.admin.stream_cut("s", "t")
        written = StreamCut.of("s", "t", {0: -1, 1: ends[1]})
        for end in (None, tail):
            with headrace.reader("s", "t", start=written, end=end) as reader:
                assert reader.position.offsets == ends
                events = {read.event for _, read in zip(range(10), reader, strict=False)}
                assert events == {b"k%d:after" % key for key in range(10)}
                assert 0 not in reader.position.offsets


def test_slow_reader_allocates_no_extra_buffers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other one would be fresh memory, for every reply."""
    made: list[int] = []

    class Buffers(framing._PayloadBuffers):
        def take(self, length_bytes: int) -> memoryview:
            kept = list(map(id, self._kept))
            taken = super().take(length_bytes)
            if id(taken.obj) not in kept:
                made.append(length_bytes)
            return taken

    monkeypatch.setattr(framing, "_PayloadBuffers", Buffers)
    for segment in (0, 1):
        cluster.put(segment, *[bytes(10_000)] * 600)
    cluster.seal_stream()
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        count = 0
        while (batch := reader.read_batch()) is not None:
            time.sleep(0.01)  # all that was asked for has come
            count += len(batch.events)
    assert count == 1200
    assert 0 < len(made) <= framing._REUSED_BUFFERS_MAX


def _check_covers_key_space(cluster: Cluster, cut: StreamCut) -> None:
    ranges = sorted(cluster.segments[identifier].key_range for identifier in cut.offsets)
    assert [key_range.low for key_range in ranges] == [0.0, *(key_range.high for key_range in ranges[:-1])]
    assert ranges[-1].high == 1.0


def test_offsets_are_those_of_the_events(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        cluster.seal_stream()
        with headrace.reader("s", "t") as reader:
            for event, segment, offset in reader:
                data = cluster.segments[segment].data
                assert data[offset : offset + 8 + len(event)] == wire.FRAME_HEADER.pack(0, len(event)) + event


def test_batches_at_the_tail(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        assert reader.read_batch(timeout_s=0.01) is None
        assert not reader.ended
        cluster.put(1, b"a", b"b")
        batch = reader.read_batch(timeout_s=30)
        assert batch == (1, 0, 18, [b"a", b"b"])
        assert reader.position.offsets == {0: 0, 1: 18}
        cluster.put(0, b"c")
        assert reader.read_batch(timeout_s=30) == (0, 0, 9, [b"c"])


def test_from_the_tail_only_newer_events(cluster: Cluster) -> None:
    cluster.put(0, b"old")
    with cluster.client() as headrace, headrace.reader("s", "t", start="latest") as reader:
        cluster.put(0, b"new")
        batch = reader.read_batch(timeout_s=30)
        assert batch is not None
        assert batch.events == [b"new"]


def test_between_two_cuts(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        cluster.put(0, b"before")
        start = headrace.admin.stream_cut("s", "t")
        cluster.put(0, b"within")
        cluster.put(1, b"too")
        end = headrace.admin.stream_cut("s", "t")
        cluster.put(1, b"after")
        with headrace.reader("s", "t", start, end) as reader:
            assert sorted(read.event for read in reader) == [b"too", b"within"]
        with headrace.reader("s", "t", start, start) as reader:
            assert list(reader) == []


def test_a_successor_waits_for_all_its_predecessors(cluster: Cluster) -> None:
    """The second predecessor of a merge is still open when the first has ended."""
    cluster.put(0, b"k0:0")
    cluster.put(1, b"k1:0")
    (merged,) = cluster.scale([0, 1], [(0.0, 1.0)])
    cluster.segments[1].sealed = False
    cluster.put(merged, b"k1:2")
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        first = [reader.read_batch(timeout_s=30), reader.read_batch(timeout_s=30)]
        assert sorted(batch.events[0] for batch in first if batch) == [b"k0:0", b"k1:0"]
        assert reader.read_batch(timeout_s=0.1) is None
        assert reader.position.offsets == {0: 12, 1: 12}
        cluster.put(1, b"k1:1")
        cluster.segments[1].sealed = True
        rest = [reader.read_batch(timeout_s=30), reader.read_batch(timeout_s=30)]
        assert [batch.events for batch in rest if batch] == [[b"k1:1"], [b"k1:2"]]
        assert reader.position.offsets == {merged: 12}


def test_large_events_over_many_reads(cluster: Cluster) -> None:
    large = [bytes([number]) * (8 * 1024 * 1024) for number in range(2)]
    cluster.put(0, b"small", *large, b"end")
    cluster.seal_stream()
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        assert [read.event for read in reader] == [b"small", *large, b"end"]


def test_reading_may_start_at_an_event_of_many_windows(cluster: Cluster) -> None:
    """The first windows complete no event. That tells that it is cut off only when nothing follows."""
    large = bytes(4 * 1024 * 1024)
    cluster.put(0, large)
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        batch = reader.read_batch(timeout_s=30)
        assert batch is not None
        assert batch.events == [large]
    assert cluster.reads > 4, "one window had it all"


@pytest.mark.parametrize("seed", range(3))
def test_connections_that_break(cluster: Cluster, seed: int) -> None:
    dice = random.Random(seed)
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        cluster.seal_stream()
        events = []
        with headrace.reader("s", "t") as reader:
            for read in reader:
                events.append(read.event)
                if dice.random() < 0.02:
                    cluster.drop_connections()
        assert _by_key(events) == EVERYTHING


def test_reader_retries_wrong_host_and_a_store_not_ready(cluster: Cluster) -> None:
    cluster.put(0, b"here")
    cluster.seal_stream()
    name = cluster.name(0)
    ids = [1 << 32 | 1, 2 << 32 | 1]
    cluster.replies[wire.ReadSegment] = [reply for request_id in ids for reply in (wire.WrongHost(request_id, name),)]
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        assert [read.event for read in reader] == [b"here"]
    endpoints = [path for _, path in cluster.requests if path.endswith("/endpoint")]
    assert len(endpoints) > 2


def test_silent_store_is_asked_over_a_new_connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_time_out(_: wire.WireCommand) -> None:
        """Called before a command is answered, so for the one that the client sends next."""
        monkeypatch.setattr(segment_stream, "READ_TIMEOUT_S", 0.1 if cluster.connections == 1 else 60.0)

    cluster.refuse = set_time_out
    cluster.put(0, b"here")
    cluster.seal_stream()
    cluster.replies[wire.ReadSegment] = [wire.KeepAlive()]
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        assert [read.event for read in reader] == [b"here"]
    assert cluster.connections == 2


def test_truncation_is_an_error_or_skipped(cluster: Cluster) -> None:
    cluster.put(0, b"gone", b"kept")
    with cluster.client() as headrace:
        start = StreamCut.of("s", "t", {0: 0, 1: 0})
        cluster.segments[0].start = 12
        cluster.seal_stream()
        with headrace.reader("s", "t", start) as reader:
            for _ in range(2):  # the second call does not wait for a segment that is not read any more
                with pytest.raises(TruncatedError, match="begins at offset 12"):
                    list(reader)
        with headrace.reader("s", "t", start, options=ReaderOptions(on_truncation="skip")) as reader:
            assert [read.event for read in reader] == [b"kept"]
        with headrace.reader("s", "t", "earliest") as reader:
            assert [read.event for read in reader] == [b"kept"]


def test_a_skip_into_an_event_is_an_error_at_the_tail(cluster: Cluster) -> None:
    """A truncation inside the last event leaves bytes that never become an event: a reader would wait for them."""
    cluster.put(0, b"gone", b"kept")
    cluster.segments[0].start = 20
    start = StreamCut.of("s", "t", {0: 0, 1: 0})
    options = ReaderOptions(on_truncation="skip")
    with (
        cluster.client() as headrace,
        headrace.reader("s", "t", start, options=options) as reader,
        pytest.raises(CorruptError, match="between two"),
    ):
        reader.read_batch(timeout_s=30)


def test_a_deleted_segment_is_an_error_or_skipped(cluster: Cluster) -> None:
    cluster.put(0, b"gone")
    created = cluster.scale([0], [(0.0, 0.2), (0.2, 0.5)])
    cluster.put(created[0], b"later")
    cluster.seal_stream()
    cluster.segments[0].deleted = True
    with cluster.client() as headrace:
        with headrace.reader("s", "t") as reader, pytest.raises(TruncatedError, match="was deleted"):
            list(reader)
        with headrace.reader("s", "t", options=ReaderOptions(on_truncation="skip")) as reader:
            assert [read.event for read in reader] == [b"later"]


def test_bytes_that_are_no_events(cluster: Cluster) -> None:
    cluster.segments[0].data += b"GET / HTTP/1.1\r\n"
    with (
        cluster.client() as headrace,
        headrace.reader("s", "t") as reader,
        pytest.raises(CorruptError, match="no event at"),
    ):
        list(reader)


def test_a_cut_inside_an_event(cluster: Cluster) -> None:
    cluster.put(0, b"event")
    with cluster.client() as headrace:
        end = StreamCut.of("s", "t", {0: 10, 1: 0})
        with (
            headrace.reader("s", "t", end=end) as reader,
            pytest.raises(CorruptError, match="inside the event"),
        ):
            list(reader)


def test_a_cut_of_another_stream(cluster: Cluster) -> None:
    with cluster.client() as headrace, pytest.raises(InvalidRequestError, match="not to s/t"):
        headrace.reader("s", "t", StreamCut.of("s", "other", {0: 0}))


def test_a_store_that_stays_away(cluster: Cluster) -> None:
    cluster.stop_store()
    with (
        cluster.client() as headrace,
        headrace.reader("s", "t", options=ReaderOptions(give_up_after_s=0.05)) as reader,
        pytest.raises(UnavailableError, match="cannot be reached"),
    ):
        list(reader)


@pytest.mark.anyio
async def test_asynchronous_reader_reads_to_the_end(cluster: Cluster) -> None:
    cluster.put(0, b"a", b"b")
    cluster.seal_stream()
    async with (
        AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle)) as headrace,
        await headrace.reader("s", "t") as reader,
    ):
        assert [read.event async for read in reader] == [b"a", b"b"]

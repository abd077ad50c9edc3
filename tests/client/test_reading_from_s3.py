"""A reader that connects to no segment store: it reads what is in S3, and sees the events that others see."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from linked_objects import LinkedObjects
from real_cluster import RealCluster, WorkingQueue, connected_to

from functions import wiring
from headrace.cli import main, session
from headrace.client import (
    EventReader,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    InvalidRequestError,
    NotFoundError,
    ReaderGroupConfiguration,
    ReaderOptions,
    ReadOrder,
    ScalingPolicy,
    StreamCut,
    TruncatedError,
    UnavailableError,
)
from headrace.client.groups import group_synchronizer
from headrace.client.reading import linked_history
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment import revisioned_stream
from headrace.codec.events import frame_event
from headrace.model.chunks import chunk_partition, chunk_sort
from headrace.ports.metadata_store import Delete
from headrace.wire.connections.asynchronous import AsyncConnection

WAIT_S = 10.0
EVENT_BYTES = 1000
EVENTS = 200
LATER = 5
KEYS = 8
FROM_S3 = ReaderOptions(from_s3=True)
IMPATIENT = ReaderOptions(from_s3=True, give_up_after_s=0.1)


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_history, "ObjectReads", LinkedObjects)
    monkeypatch.setattr(linked_history, "LISTED_BYTES_MAX", 60_000)
    monkeypatch.setattr(linked_history, "LISTINGS_AGAIN_S", 0.02)
    monkeypatch.setattr(linked_history, "LISTINGS_PER_S", 1000.0)
    monkeypatch.setattr(LinkedObjects, "read_bytes", 0)
    monkeypatch.setattr(LinkedObjects, "failing", False)


@pytest.fixture
def far(real: RealCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Headrace]:
    """A client that does not reach the stores, and must not try."""
    connected = SegmentConnections.to_segment
    with connected_to(real, far=True) as client:

        async def near_only(connections: SegmentConnections, segment_id: int) -> AsyncConnection:
            assert connections._source is not client._core.admin, segment_id
            return await connected(connections, segment_id)

        monkeypatch.setattr(SegmentConnections, "to_segment", near_only)
        yield client


def write(client: Headrace, first: int, count: int) -> None:
    with client.writer("shop", "t") as writer:
        for number in range(first, first + count):
            writer.write(b"%0992d" % number, f"key-{number % KEYS}")


def store_all(real: RealCluster) -> None:
    """Everything that was written is in S3."""
    real.stop_store()
    real.start_store()


@pytest.fixture
def stored(headrace: Headrace, real: RealCluster) -> Headrace:
    """The stream shop/t: one segment with 200 events in S3, and 5 events that only the store has."""
    headrace.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(1))
    write(headrace, 0, EVENTS)
    store_all(real)
    write(headrace, EVENTS, LATER)
    return headrace


def read(reader: EventReader, count: int) -> list[int]:
    events = iter(reader)
    return [int(next(events).event) for _ in range(count)]


def by_key(numbers: list[int]) -> dict[int, list[int]]:
    return {key: [number for number in numbers if number % KEYS == key] for key in range(KEYS)}


def test_what_is_in_s3_is_read_and_more_is_waited_for(stored: Headrace, real: RealCluster, far: Headrace) -> None:
    with far.reader("shop", "t", options=FROM_S3) as reader:
        assert read(reader, EVENTS) == list(range(EVENTS))
        assert reader.read_batch(timeout_s=0.2) is None
        assert not reader.ended
        assert reader.position.offsets == {0: EVENTS * EVENT_BYTES}
        store_all(real)
        assert read(reader, LATER) == list(range(EVENTS, EVENTS + LATER))
    assert LinkedObjects.read_bytes == (EVENTS + LATER) * EVENT_BYTES


def test_the_order_of_each_key_is_kept_across_scales(stored: Headrace, real: RealCluster, far: Headrace) -> None:
    admin = stored.admin
    admin.scale_stream("shop", "t", seal=[0], ranges=[(0.0, 0.5), (0.5, 1.0)])
    write(stored, EVENTS + LATER, EVENTS)
    admin.scale_stream("shop", "t", seal=[(1 << 32) + 1, (1 << 32) + 2], ranges=[(0.0, 1.0)])
    write(stored, 2 * EVENTS + LATER, EVENTS)
    store_all(real)
    everything = list(range(3 * EVENTS + LATER))
    with far.reader("shop", "t", options=FROM_S3) as reader:
        found = read(reader, len(everything))
        assert sorted(found) == everything
        assert by_key(found) == by_key(everything)
        assert reader.position == admin.stream_cut("shop", "t", at="latest")


def test_a_sealed_stream_ends(stored: Headrace, real: RealCluster, far: Headrace) -> None:
    stored.admin.seal_stream("shop", "t")
    store_all(real)
    with far.reader("shop", "t", options=FROM_S3) as reader:
        assert [int(event.event) for event in reader] == list(range(EVENTS + LATER))
        assert reader.ended


def test_a_segment_that_is_sealed_ends_when_s3_has_it(stored: Headrace, real: RealCluster, far: Headrace) -> None:
    with far.reader("shop", "t", options=FROM_S3) as reader:
        assert read(reader, EVENTS) == list(range(EVENTS))
        stored.admin.scale_stream("shop", "t", seal=[0], ranges=[(0.0, 0.5), (0.5, 1.0)])
        assert reader.read_batch(timeout_s=0.3) is None
        assert set(reader.position.offsets) == {0}
        store_all(real)
        assert read(reader, LATER) == list(range(EVENTS, EVENTS + LATER))
        write(stored, EVENTS + LATER, 1)
        store_all(real)
        assert read(reader, 1) == [EVENTS + LATER]


def test_readers_continue_at_each_others_positions(stored: Headrace, far: Headrace) -> None:
    with far.reader("shop", "t", options=FROM_S3) as reader:
        read(reader, 150)
        middle = reader.position
    with stored.reader("shop", "t", middle) as reader:
        assert read(reader, EVENTS + LATER - 150) == list(range(150, EVENTS + LATER))
    with stored.reader("shop", "t") as reader:
        read(reader, 60)
        first = reader.position
    with far.reader("shop", "t", first, middle, FROM_S3) as reader:
        assert [int(event.event) for event in reader] == list(range(60, 150))
        assert reader.ended


def test_an_end_that_s3_does_not_have_fails_in_the_end(stored: Headrace, far: Headrace) -> None:
    with far.reader("shop", "t", end="latest", options=IMPATIENT) as reader:
        found = []
        with pytest.raises(UnavailableError, match=r"S3 has shop/t/0.* up to 200000, and not yet up to the end 205000"):
            found += [int(event.event) for event in reader]
    assert LinkedObjects.read_bytes == EVENTS * EVENT_BYTES


def _truncate(client: Headrace, event: int) -> None:
    client.admin.truncate_stream("shop", "t", StreamCut.of("shop", "t", {0: event * EVENT_BYTES}))


def test_truncated_events_are_an_error_or_skipped(stored: Headrace, far: Headrace) -> None:
    start = StreamCut.of("shop", "t", {0: 0})
    _truncate(stored, 50)
    with far.reader("shop", "t", start, options=FROM_S3) as reader, pytest.raises(TruncatedError):
        read(reader, 1)
    skipping = ReaderOptions(from_s3=True, on_truncation="skip")
    with far.reader("shop", "t", start, options=skipping) as reader:
        assert read(reader, 150) == list(range(50, EVENTS))


@pytest.mark.parametrize("on_truncation", ["error", "skip"])
def test_a_deleted_segment_ends(stored: Headrace, real: RealCluster, far: Headrace, on_truncation: str) -> None:
    """A reader that has all of it loses nothing; one in its middle is refused, or goes on behind it."""
    options = ReaderOptions(from_s3=True, on_truncation=on_truncation)  # type: ignore[arg-type]
    store_all(real)
    end = stored.admin.stream_cut("shop", "t", at="latest")
    stored.admin.scale_stream("shop", "t", seal=[0], ranges=[(0.0, 1.0)])
    write(stored, EVENTS + LATER, LATER)
    stored.admin.truncate_stream("shop", "t", stored.admin.stream_cut("shop", "t", at="latest"))
    write(stored, EVENTS + 2 * LATER, LATER)
    store_all(real)
    with far.reader("shop", "t", StreamCut.of("shop", "t", {0: 3000}), options=options) as reader:
        if on_truncation == "error":
            with pytest.raises(TruncatedError, match="was deleted with its events"):
                read(reader, 1)
        else:
            assert read(reader, LATER) == list(range(EVENTS + 2 * LATER, EVENTS + 3 * LATER))
    with far.reader("shop", "t", end, options=options) as reader:
        if on_truncation == "error":
            with pytest.raises(TruncatedError, match="start"):
                read(reader, 1)  # of the next segment
            assert set(reader.position.offsets) == {1 << 32 | 1}
        else:
            assert read(reader, LATER) == list(range(EVENTS + 2 * LATER, EVENTS + 3 * LATER))


@pytest.mark.parametrize("sealed_by", ["a seal", "a scale"])
@pytest.mark.parametrize("on_truncation", ["error", "skip"])
def test_a_sealed_segment_that_was_truncated_to_its_end_ends(
    stored: Headrace, real: RealCluster, far: Headrace, sealed_by: str, on_truncation: str
) -> None:
    """S3 will never have the bytes at the reader's position."""
    options = ReaderOptions(from_s3=True, on_truncation=on_truncation)  # type: ignore[arg-type]
    _truncate(stored, EVENTS + LATER)
    if sealed_by == "a seal":
        stored.admin.seal_stream("shop", "t")
    else:
        stored.admin.scale_stream("shop", "t", seal=[0], ranges=[(0.0, 1.0)])
        write(stored, EVENTS + LATER, LATER)
    store_all(real)
    for run in real.metadata.query(chunk_partition("shop/t/0.#epoch.0"), first=chunk_sort(0), limit=9).records:
        real.metadata.write(Delete(run.key, run.version))  # as the store does after a while
    with far.reader("shop", "t", StreamCut.of("shop", "t", {0: 3000}), options=options) as reader:
        if on_truncation == "error":
            with pytest.raises(TruncatedError, match="starts at 205000: the bytes at 3000 were truncated"):
                reader.read_batch(timeout_s=30)
        elif sealed_by == "a seal":
            assert reader.read_batch(timeout_s=30) is None
            assert reader.ended
        else:
            assert read(reader, LATER) == list(range(EVENTS + LATER, EVENTS + 2 * LATER))


def test_s3_and_controller_may_be_away_for_a_while(stored: Headrace, real: RealCluster, far: Headrace) -> None:
    LinkedObjects.failing = True
    with far.reader("shop", "t", options=FROM_S3) as reader:
        assert reader.read_batch(timeout_s=0.2) is None
        LinkedObjects.failing = False
        assert read(reader, EVENTS) == list(range(EVENTS))
    LinkedObjects.failing = True
    with far.reader("shop", "t", options=IMPATIENT) as reader, pytest.raises(UnavailableError, match="S3 does not"):
        read(reader, 1)


def test_arrow_batches_come_from_s3(stored: Headrace, far: Headrace) -> None:
    with far.reader("shop", "t", options=FROM_S3) as reader:
        rows = 0
        while rows < EVENTS:
            batch = reader.read_arrow_batch()
            assert batch is not None
            rows += batch.num_rows
    assert rows == EVENTS


@pytest.mark.parametrize("place", ["-5m", "2026-11-23T10:05:30Z"])
def test_a_time_is_no_place_of_s3(stored: Headrace, far: Headrace, place: str) -> None:
    with pytest.raises(InvalidRequestError, match="a reader from S3 begins and ends at"):
        far.reader("shop", "t", place, options=FROM_S3)
    with pytest.raises(InvalidRequestError, match="a reader from S3 begins and ends at"):
        far.reader("shop", "t", end=place, options=FROM_S3)


def test_a_time_window_is_refused_at_once(stored: Headrace, far: Headrace) -> None:
    """The watermarks are in a segment of their own, and are read from its store."""
    with far.reader("shop", "t", options=FROM_S3) as reader, pytest.raises(InvalidRequestError, match="no time window"):
        reader.time_window()


def test_options_that_need_the_stores_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no order of time"):
        ReaderOptions(order=ReadOrder.TIME, from_s3=True)
    with pytest.raises(InvalidRequestError, match="need the segment stores"):
        GroupReaderOptions(reading=FROM_S3)


def test_segments_that_wait_share_a_rate_of_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await forever.wait()

    async def wait_five_at_once() -> None:
        history = linked_history.LinkedHistory(None, "shop", "t")  # type: ignore[arg-type]
        waiting = [asyncio.ensure_future(history.until_next_listing()) for _ in range(5)]
        await real_sleep(0)
        forever.set()
        await asyncio.gather(*waiting)
        await history.until_next_listing()

    real_sleep, forever = asyncio.sleep, asyncio.Event()
    monkeypatch.setattr(linked_history, "LISTINGS_AGAIN_S", 2.0)
    monkeypatch.setattr(linked_history, "LISTINGS_PER_S", 1.0)
    monkeypatch.setattr("headrace.client.reading.linked_history.asyncio.sleep", note)
    asyncio.run(wait_five_at_once())
    assert pauses == [2.0, 2.0, 3.0, 4.0, 5.0, 2.0]


def test_the_command_reads_from_s3(
    stored: Headrace, real: RealCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(real, far=True))
    assert main(["event", "read", "shop/t", "--follow", "--from", "earliest", "--from-s3", "--count", "2"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.isdigit()]  # the functions print metrics
    assert [int(line) for line in printed] == [0, 1]
    assert main(["event", "read", "shop/t", "--from-s3", "--times"]) == 2
    assert main(["event", "read", "shop/t", "--from-s3", "--order", "time"]) == 2
    assert "--from-s3 has no times" in capsys.readouterr().err


def test_the_state_of_a_group_is_read_from_s3(
    stored: Headrace, real: RealCluster, far: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    stored.admin.reader_groups.create("shop", "billing", ReaderGroupConfiguration((GroupStream("shop", "t"),)))
    with pytest.raises(NotFoundError, match="no reader has joined it yet"):
        far.reader_group("shop", "billing", from_s3=True)
    with stored.reader_group("shop", "billing") as near, near.reader("one") as reader:
        reader.read_batch(timeout_s=10)
        store_all(real)
        with far.reader_group("shop", "billing", from_s3=True) as group:
            assert set(group.readers()) == {"one"}
            assert group.status() == near.status()
            assert group.recorded_cuts() == near.recorded_cuts()
            near.reader_offline("one")
            assert set(group.readers()) == {"one"}
            store_all(real)
            assert group.readers() == {}
            for refused in (group.lag, lambda: group.reset("earliest"), lambda: group.checkpoint("c")):
                with pytest.raises(InvalidRequestError, match=r"from S3"):
                    refused()
            threads = [each for each in threading.enumerate() if each.name.startswith("headrace-history")]
            assert threads
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a group that is closed leaves no thread"


def test_entries_from_s3_are_given_again_until_they_are_passed() -> None:
    """A reader that fails at an entry fails at it again, and does not ask for more entries for ever."""

    class OneEntry:
        async def stored(self, segment_id: int, start: int, stop: int | None) -> AsyncIterator[bytes]:
            if start == 0:
                yield frame_event(b"x")

    async def read_twice() -> list[list[int]]:
        source: Any = SimpleNamespace(delegation_tokens=None)
        revisions = revisioned_stream.StoredRevisions(source, "shop", "_RGbilling", 0)
        history: Any = OneEntry()
        revisions._history = history
        return [[entry.revision for entry in await revisions.read_after(at)] for at in (0, 0, 9)]

    assert asyncio.run(read_twice()) == [[9], [9], []]


def test_a_compaction_moves_the_oldest_revision_in_s3(
    stored: Headrace, real: RealCluster, far: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 does not have the mark. A copy that has not read up to it begins again at the head."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    stored.admin.reader_groups.create("shop", "billing", ReaderGroupConfiguration((GroupStream("shop", "t"),)))
    path = stored.admin.reader_groups.get("shop", "billing").state_stream
    segment = stored.admin.reader_groups.state_segment("shop", "billing")
    with stored.reader_group("shop", "billing") as near, near.reader("one") as reader:
        reader.read_batch(timeout_s=10)
        store_all(real)

        async def watch() -> list[int]:
            core = far._core
            source = group_synchronizer._StateSource(core.admin, "billing")
            copy = revisioned_stream.StoredRevisions(source, "shop", path, segment)
            try:
                first = [await copy.oldest_revision(), await copy.latest_revision()]
                await asyncio.to_thread(compact)
                await asyncio.to_thread(store_all, real)
                latest = await copy.latest_revision()
                oldest = await copy.oldest_revision()
                with pytest.raises(TruncatedError, match="read from the oldest revision"):
                    await copy.read_after(first[0])
                entries = await copy.read_after(oldest)
                return [*first, oldest, latest, entries[0].revision, entries[-1].revision]
            finally:
                await copy.close()

        def compact() -> None:
            synchronizer = near._core._synchronizer
            near.reader_offline("one")
            for _ in range(2):  # each removes what was before the mark of the one before
                near._thread.run(synchronizer.entries.compact())

        with far.reader_group("shop", "billing", from_s3=True) as group:
            assert set(group.readers()) == {"one"}
            first_oldest, first_latest, oldest, latest, first_entry, last_entry = far._thread.run(watch())
            assert first_oldest == 0
            assert first_latest < oldest < first_entry <= last_entry == latest
            assert group.readers() == {}, "its copy was behind the head, too"
            assert group.status() == near.status()


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("position", [0, 100, EVENTS])
def test_a_stream_that_is_deleted_ends_the_reader(
    stored: Headrace, real: RealCluster, far: Headrace, position: int, *, is_created_again: bool
) -> None:
    """Also one that waits at the end of what S3 has. It reads no event of another stream with this name."""
    with far.reader("shop", "t", options=FROM_S3) as reader:
        assert read(reader, position) == list(range(position))
        stored.admin.seal_stream("shop", "t")
        stored.admin.delete_stream("shop", "t")
        if is_created_again:
            stored.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(1))
            write(stored, 1000, EVENTS)
            store_all(real)

        def rest() -> list[int]:
            """Events that were fetched before, and the error behind them."""
            found = []
            while True:
                batch = reader.read_batch(timeout_s=30)
                assert batch is not None, "neither an event nor an error"
                found += map(int, batch.events)
                assert max(found) < EVENTS

        with pytest.raises(NotFoundError, match="shop/t"):
            rest()


@pytest.mark.parametrize("stream", ["_MARKt", "prices_kvtable"])
def test_other_internal_streams_have_no_links(real: RealCluster, stream: str) -> None:
    with pytest.raises(InvalidRequestError):
        wiring.history_service().chunks("shop", stream, 0)

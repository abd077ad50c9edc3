"""Readers read history from S3 if the store is in another zone than they, and see the same events in any case."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing

import pytest
from linked_objects import LinkedObjects
from real_cluster import CONTAINERS, RealCluster, WorkingQueue, connected_to

from functions import wiring
from headrace.client import (
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ReaderOptions,
    ReadOrder,
    ScalingPolicy,
    StreamCut,
    TruncatedError,
    UnavailableError,
)
from headrace.client.reading import linked_history, segment_stream
from headrace.client.reading.object_reads import ObjectReadError
from headrace.model.names import container_of_segment, segment_name

EVENT_BYTES = 1000
EVENTS = 200
LATER = 5
ZONES = ("use1-az1", "use1-az2", "use1-az3")
SEGMENTS = 6


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_history, "ObjectReads", LinkedObjects)
    monkeypatch.setattr(linked_history, "LINKED_BYTES_MIN", 20_000)
    monkeypatch.setattr(linked_history, "CHUNK_BYTES_MIN", 1000)
    monkeypatch.setattr(linked_history, "LISTED_BYTES_MAX", 60_000)
    monkeypatch.setattr(segment_stream, "STORE_BYTES_BETWEEN_LISTINGS", 50_000)
    monkeypatch.setattr(LinkedObjects, "read_bytes", 0)
    monkeypatch.setattr(LinkedObjects, "failing", False)


def _write(client: Headrace, first: int, count: int, stream: str = "t") -> None:
    with client.writer("shop", stream) as writer:
        for number in range(first, first + count):
            writer.write(b"%0992d" % number)


@pytest.fixture
def stored(headrace: Headrace, real: RealCluster) -> Headrace:
    """The stream shop/t: one segment with 200 events in S3, and 5 events that only the store has."""
    headrace.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(1))
    _write(headrace, 0, EVENTS)
    real.stop_store()
    real.start_store()
    _write(headrace, EVENTS, LATER)
    return headrace


def sent_bytes(real: RealCluster) -> int:
    """The data that the store has sent to readers since it was started."""
    assert real.store is not None
    return real.store.metrics.read_bytes


def numbers(client: Headrace, options: ReaderOptions | None = None) -> list[int]:
    """Reads shop/t up to its tail, as it is now."""
    end = client.admin.stream_cut("shop", "t", at="latest")
    with client.reader("shop", "t", end=end, options=options) as reader:
        return [int(read.event) for read in reader]


ALL = list(range(EVENTS + LATER))


def test_history_of_another_zone_comes_from_s3(stored: Headrace, real: RealCluster) -> None:
    with connected_to(real, zone="use1-az2") as client:
        assert numbers(client) == ALL
    listings = EVENTS * EVENT_BYTES // 60_000 + 1
    rest = linked_history.LINKED_BYTES_MIN + LATER * EVENT_BYTES
    assert sent_bytes(real) <= listings * segment_stream.GLIMPSE_BYTES + rest
    assert LinkedObjects.read_bytes + sent_bytes(real) == len(ALL) * EVENT_BYTES


@pytest.mark.parametrize("zone", ["local", "", None])
def test_the_own_or_no_zone_reads_from_the_store(stored: Headrace, real: RealCluster, zone: str | None) -> None:
    with connected_to(real, zone=zone) as client:
        assert numbers(client) == ALL
    assert (sent_bytes(real), LinkedObjects.read_bytes) == (len(ALL) * EVENT_BYTES, 0)


def test_the_order_of_time_reads_from_the_store(stored: Headrace, real: RealCluster) -> None:
    with connected_to(real, zone="use1-az2") as client:
        assert numbers(client, ReaderOptions(order=ReadOrder.TIME)) == ALL
    assert LinkedObjects.read_bytes == 0


def test_a_reader_follows_the_tail_behind_history(stored: Headrace, real: RealCluster) -> None:
    with connected_to(real, zone="use1-az2") as client, client.reader("shop", "t") as reader:
        events = iter(reader)
        read = [int(next(events).event) for _ in ALL]
        linked = LinkedObjects.read_bytes
        _write(stored, len(ALL), 3)
        read += [int(next(events).event) for _ in range(3)]
    assert read == list(range(len(ALL) + 3))
    assert 0 < linked == LinkedObjects.read_bytes


def test_a_sealed_segment_ends_behind_its_history(stored: Headrace, real: RealCluster) -> None:
    stored.admin.seal_stream("shop", "t")
    real.stop_store()
    real.start_store()
    with connected_to(real, zone="use1-az2") as client, client.reader("shop", "t") as reader:
        assert [int(read.event) for read in reader] == ALL
    assert LinkedObjects.read_bytes > EVENTS * EVENT_BYTES // 2


def test_without_s3_all_comes_from_the_store(stored: Headrace, real: RealCluster) -> None:
    LinkedObjects.failing = True
    with connected_to(real, zone="use1-az2") as client:
        assert numbers(client) == ALL
    assert sent_bytes(real) == len(ALL) * EVENT_BYTES


def test_links_that_fail_midway_lose_nothing(
    stored: Headrace, real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = LinkedObjects.read

    def cut_off(self: LinkedObjects, url: str, headers: Mapping[str, str], length: int) -> Iterator[bytearray]:
        yield next(given(self, url, headers, length))[:12_345]
        raise ObjectReadError("the connection was lost")

    monkeypatch.setattr(LinkedObjects, "read", cut_off)
    monkeypatch.setattr("headrace.client.reading.chunk_reads.SMALL_CHUNK_BYTES", 0)
    with connected_to(real, zone="use1-az2") as client:
        assert numbers(client) == ALL
    assert sent_bytes(real) == len(ALL) * EVENT_BYTES - 12_345


def test_without_listings_all_comes_from_the_store(
    stored: Headrace, real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise UnavailableError("no links today")

    with connected_to(real, zone="use1-az2") as client:
        monkeypatch.setattr(wiring, "chunk_links", refuse)
        wiring.forget_services()
        monkeypatch.setattr(linked_history, "LISTING_S_MAX", 0.5)
        assert numbers(client) == ALL
    assert sent_bytes(real) == len(ALL) * EVENT_BYTES


def test_a_pause_ends_for_segments_that_began_in_it(
    stored: Headrace, real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings of successors begin at any time, and last for hours."""
    now_s, paused = 1.0, False

    class Paused(linked_history.LinkedHistory):
        async def windows(
            self, segment_id: int, start: int, stop: int | None
        ) -> AsyncGenerator[bytes | bytearray, None]:
            nonlocal now_s
            async with aclosing(super().windows(segment_id, start, stop)) as windows:
                async for window in windows:
                    yield window
            now_s = linked_history.PAUSE_S

        async def saves(self, store_zone: str) -> bool:
            nonlocal paused
            self._monotonic_s, self._paused_until_s, paused = lambda: now_s, linked_history.PAUSE_S, True
            return await super().saves(store_zone)

    monkeypatch.setattr("headrace.client.reading.event_reader.LinkedHistory", Paused)
    with connected_to(real, zone="use1-az2") as client:
        assert numbers(client) == ALL
    assert paused
    assert 0 < LinkedObjects.read_bytes <= len(ALL) * EVENT_BYTES - segment_stream.STORE_BYTES_BETWEEN_LISTINGS


def _truncate(client: Headrace, event: int) -> None:
    client.admin.truncate_stream("shop", "t", StreamCut.of("shop", "t", {0: event * EVENT_BYTES}))


def test_a_truncation_is_noticed_behind_a_listing(stored: Headrace, real: RealCluster) -> None:
    with connected_to(real, zone="use1-az2") as client, client.reader("shop", "t") as reader:
        events = iter(reader)
        read = [int(next(events).event)]
        _truncate(stored, EVENTS - 1)
        with pytest.raises(TruncatedError):
            read += [int(event.event) for event in events]
    assert read == list(range(len(read)))
    assert len(read) < EVENTS - 1


def test_truncated_events_are_skipped_as_ever(stored: Headrace, real: RealCluster) -> None:
    _truncate(stored, 50)
    with connected_to(real, zone="use1-az2") as client:
        start = StreamCut.of("shop", "t", {0: 0})
        end = client.admin.stream_cut("shop", "t", at="latest")
        with client.reader("shop", "t", start, end, ReaderOptions(on_truncation="skip")) as reader:
            assert [int(read.event) for read in reader] == ALL[50:]
    assert LinkedObjects.read_bytes > 0


def test_each_segment_is_compared_with_its_own_store(headrace: Headrace, real: RealCluster) -> None:
    """Three zones: a reader takes from S3 what the stores of the other two have."""
    real.zones = {container: ZONES[container % len(ZONES)] for container in range(CONTAINERS)}
    headrace.admin.create_stream("shop", "t", scaling=ScalingPolicy.fixed(SEGMENTS))
    with headrace.writer("shop", "t") as writer:
        for number in range(SEGMENTS * EVENTS):
            writer.write(b"%0992d" % number, routing_key=str(number))
    real.stop_store()
    real.start_store()
    lengths = headrace.admin.stream_cut("shop", "t", at="latest").offsets
    zones = {each: real.zones[container_of_segment(segment_name("shop", "t", each), CONTAINERS)] for each in lengths}
    assert len(set(zones.values())) > 1
    for zone in ZONES:
        LinkedObjects.read_bytes = 0
        with connected_to(real, zone=zone) as client:
            assert sorted(numbers(client)) == list(range(SEGMENTS * EVENTS))
        elsewhere = sum(length for each, length in lengths.items() if zones[each] != zone)
        listings = sum(length // 60_000 + 2 for length in lengths.values())
        assert elsewhere - listings * (segment_stream.GLIMPSE_BYTES + 20_000) <= LinkedObjects.read_bytes <= elsewhere


def test_members_of_a_group_read_history_from_s3(
    stored: Headrace, real: RealCluster, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    stream = GroupStream("shop", "t", end=stored.admin.stream_cut("shop", "t", at="latest"))
    stored.admin.reader_groups.create("shop", "billing", ReaderGroupConfiguration((stream,)))
    with connected_to(real, zone="use1-az2") as client:
        group = client.reader_group("shop", "billing")
        with group.reader() as reader:
            assert [int(event.event) for event in reader] == ALL
    assert LinkedObjects.read_bytes > EVENTS * EVENT_BYTES // 2

"""Ranges between two stream cuts, listed and read over everything real but AWS."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_cluster import RealCluster

from headrace.api.segments import RangesBetween
from headrace.client import (
    CorruptError,
    EventBatch,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    RangeReader,
    ScalingPolicy,
    SegmentRange,
    StreamCut,
    TruncatedError,
    UnavailableError,
)
from headrace.client.ranges import range_bytes, range_reader
from headrace.client.ranges.range_bytes import GATHERED_BYTES_MIN, StreamRanges
from headrace.client.ranges.segment_ranges import plan_requests, ranges_to_read, segment_ranges
from headrace.controller.services import reader_plans
from headrace.model.limits import PIECES_PER_PLAN_MAX, PIECES_PER_RANGE_MAX, RANGES_PER_PLAN_MAX

KEYS = 13


@pytest.fixture
def orders(headrace: Headrace) -> Headrace:
    """The client; the stream `orders` has two segments, and may have one."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    headrace.admin.update_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    return headrace


def write(headrace: Headrace, numbers: Iterable[int]) -> None:
    """Events `key number` with routing keys."""
    with headrace.writer("shop", "orders") as writer:
        for number in numbers:
            writer.write(b"%d %d" % (number % KEYS, number), str(number % KEYS))
            if number % 10 == 9:
                writer.flush()


def scale(headrace: Headrace, seal: int, ranges: list[tuple[float, float]]) -> None:
    """Replaces the first `seal` segments by others."""
    segments = [segment.segment_id for segment in headrace.admin.segments("shop", "orders")]
    headrace.admin.scale_stream("shop", "orders", seal=segments[:seal], ranges=ranges)


def tail(headrace: Headrace) -> StreamCut:
    return headrace.admin.stream_cut("shop", "orders", at="latest")


def events_in(headrace: Headrace, ranges: Iterable[SegmentRange]) -> list[bytes]:
    events: list[bytes] = []
    for part in ranges:
        with headrace.range_reader(cast(SegmentRange, pickle.loads(pickle.dumps(part)))) as reader:
            events += [event.event for event in reader]
            assert reader.unread.length_bytes == 0
    return events


def numbers_by_key(events: Iterable[bytes]) -> dict[int, list[int]]:
    numbers_by_key: dict[int, list[int]] = defaultdict(list)
    for event in events:
        key, number = map(int, event.split())
        numbers_by_key[key].append(number)
    return dict(numbers_by_key)


def in_order(numbers: Iterable[int]) -> dict[int, list[int]]:
    numbers_by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        numbers_by_key[number % KEYS].append(number)
    return dict(numbers_by_key)


def scaled(headrace: Headrace) -> tuple[StreamCut, StreamCut]:
    """The cuts around the events 50 to 249, between which segments are split, merged and split again."""
    write(headrace, range(50))
    start = tail(headrace)
    write(headrace, range(50, 100))
    scale(headrace, 1, [(0.0, 0.2), (0.2, 0.5)])
    write(headrace, range(100, 150))
    scale(headrace, 3, [(0.0, 1.0)])
    write(headrace, range(150, 200))
    scale(headrace, 1, [(0.0, 0.6), (0.6, 1.0)])
    write(headrace, range(200, 250))
    end = tail(headrace)
    write(headrace, range(250, 300))
    scale(headrace, 2, [(0.0, 1.0)])
    write(headrace, range(300, 310))
    return start, end


def test_ranges_of_a_stream_that_was_scaled(orders: Headrace) -> None:
    start, end = scaled(orders)
    ranges = orders.segment_ranges("shop", "orders", start, end)
    assert numbers_by_key(events_in(orders, ranges)) == in_order(range(50, 250))
    assert sum(part.length_bytes for part in ranges) == orders.admin.stream_cut_distance("shop", "orders", start, end)
    whole = orders.segment_ranges("shop", "orders")
    assert numbers_by_key(events_in(orders, whole)) == in_order(range(310))
    before = orders.segment_ranges("shop", "orders", end=start)
    after = orders.segment_ranges("shop", "orders", end)
    assert numbers_by_key(events_in(orders, before)) == in_order(range(50))
    assert numbers_by_key(events_in(orders, after)) == in_order(range(250, 310))


def test_values_of_a_range(orders: Headrace) -> None:
    write(orders, range(50))
    scale(orders, 2, [(0.0, 1.0)])
    write(orders, range(50, 60))
    first, second, merged = orders.segment_ranges("shop", "orders")
    assert (first.scope, first.stream, first.start) == ("shop", "orders", 0)
    assert [(part.low, part.high) for part in (first, second, merged)] == [(0.0, 0.5), (0.5, 1.0), (0.0, 1.0)]
    assert first.successors == second.successors == (merged.segment_id,)
    assert merged.predecessors == (first.segment_id, second.segment_id)
    with orders.range_reader(merged) as reader:
        read = list(reader)
    assert {event.segment_id for event in read} == {merged.segment_id}
    assert read[0].offset == 0
    assert read[-1].offset + 8 + len(read[-1].event) == merged.end


def test_ranges_without_bytes_are_left_out(orders: Headrace) -> None:
    assert orders.segment_ranges("shop", "orders") == []
    write(orders, range(50))
    assert orders.segment_ranges("shop", "orders", tail(orders), tail(orders)) == []


def test_cut_with_the_end_of_a_sealed_segment(orders: Headrace) -> None:
    """A reader of Pravega's Java client writes -1 for a segment that it has read to its end."""
    write(orders, range(50))
    scale(orders, 1, [(0.0, 0.5)])
    positions = tail(orders).offsets | {0: -1}
    del positions[max(positions)]
    write(orders, range(50, 100))
    start = StreamCut.of("shop", "orders", positions)
    assert numbers_by_key(events_in(orders, orders.segment_ranges("shop", "orders", start))) == in_order(range(50, 100))


def test_large_ranges_are_split_between_events(orders: Headrace) -> None:
    write(orders, range(3000))
    whole = orders.segment_ranges("shop", "orders")
    pieces = orders.segment_ranges("shop", "orders", bytes_max=2000)
    assert len(pieces) > 10
    for part in whole:
        mine = [piece for piece in pieces if piece.segment_id == part.segment_id]
        assert [piece.start for piece in mine] == [part.start, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == part.end
    assert numbers_by_key(events_in(orders, pieces)) == in_order(range(3000))
    with pytest.raises(InvalidRequestError):
        orders.segment_ranges("shop", "orders", bytes_max=0)


def test_batches_and_columns_have_the_same_events(orders: Headrace) -> None:
    pa = pytest.importorskip("pyarrow")
    write(orders, range(2000))
    (first, _) = orders.segment_ranges("shop", "orders")
    with orders.range_reader(first) as reader:
        singles = list(reader)
        assert reader.read_batch() is None
    with orders.range_reader(first) as reader:
        batches: list[EventBatch] = []
        while (batch := reader.read_batch()) is not None:
            batches.append(batch)
            assert reader.unread == replace(first, start=batch.end_offset)
    assert [event for batch in batches for event in batch.events] == [event.event for event in singles]
    with orders.range_reader(first) as reader:
        table = pa.Table.from_batches(reader.arrow_batches())
        with pytest.raises(IllegalStateError, match="either Arrow batches or events"):
            reader.read_batch()
    assert table["event"].to_pylist() == [event.event for event in singles]
    assert table["offset"].to_pylist() == [event.offset for event in singles]


def test_iteration_that_stops_inside_a_batch_loses_nothing(orders: Headrace) -> None:
    write(orders, range(100))
    (part, _) = orders.segment_ranges("shop", "orders")
    with orders.range_reader(part) as reader:
        whole = [event.event for event in reader]
    with orders.range_reader(part) as reader:
        events = [next(iter(reader)).event, next(iter(reader)).event]
        rest = reader.unread
        events += [event.event for event in reader]
    assert events == whole
    with orders.range_reader(rest) as reader:
        assert [event.event for event in reader] == whole[2:]


@pytest.mark.parametrize("kill", [False, True])
def test_store_that_is_lost_while_a_range_is_read(orders: Headrace, real: RealCluster, kill: bool) -> None:
    payload = bytes(100_000)
    with orders.writer("shop", "orders") as writer:
        writer.write_batch([b"%d " % number + payload for number in range(100)], "key")
    (part,) = orders.segment_ranges("shop", "orders")
    events: list[bytes] = []
    with orders.range_reader(part, read_history_from="segment_store") as reader:
        for event in reader:
            events.append(event.event)
            if len(events) in (1, 40, 80):
                real.drop_connections()
                if kill:
                    real.kill_store()
                    real.start_store()
    assert events == [b"%d " % number + payload for number in range(100)]


def test_reader_reads_on_after_an_error(orders: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [b"%d " % number + bytes(100_000) for number in range(50)]
    with orders.writer("shop", "orders") as writer:
        writer.write_batch(events, "key")
    (part,) = orders.segment_ranges("shop", "orders")
    read, asked = StreamRanges.read, []

    def failing(source: StreamRanges, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        asked.append(start)
        for window in read(source, segment_id, start, stop):
            yield window
            if len(asked) == 1:
                raise UnavailableError("no store")

    monkeypatch.setattr(StreamRanges, "read", failing)
    with orders.range_reader(part, read_history_from="segment_store") as reader:
        batch = reader.read_batch()
        assert batch is not None
        with pytest.raises(UnavailableError):
            reader.read_batch()
        assert reader.unread == replace(part, start=batch.end_offset)
        assert batch.events + [event.event for event in reader] == events
    assert asked == [0, batch.end_offset]


@pytest.mark.parametrize("kind", ["read_batch", "read_arrow_batch"])
def test_an_interrupted_call_loses_nothing(orders: Headrace, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A KeyboardInterrupt may come when the batch is there, but not with the caller yet."""
    pytest.importorskip("pyarrow")
    write(orders, range(50))
    (part, _) = orders.segment_ranges("shop", "orders")
    with orders.range_reader(part) as reader:
        run = reader._thread.run

        def interrupted(coroutine: Coroutine[Any, Any, Any]) -> None:
            run(coroutine)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(reader._thread, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                getattr(reader, kind)()
        assert reader.unread == part
        assert getattr(reader, kind)() is not None
        assert reader.unread.length_bytes == 0


def test_cuts_that_are_refused(orders: Headrace) -> None:
    start, end = scaled(orders)
    orders.admin.create_stream("shop", "others", scaling=ScalingPolicy.fixed(2))
    others = orders.admin.stream_cut("shop", "others", at="earliest")
    never = StreamCut.of("shop", "orders", {77: 0})
    refused: list[tuple[StreamCut | None, StreamCut | None]] = [
        (others, None),
        (None, others),
        (end, start),
        (never, None),
    ]
    for start_cut, end_cut in refused:
        with pytest.raises(InvalidRequestError) as found:
            orders.segment_ranges("shop", "orders", start_cut, end_cut)
        assert found.value.specific_code == "invalid_stream_cut", (start_cut, end_cut)
    with pytest.raises(InvalidRequestError, match="belongs to shop/others, not to shop/orders"):
        orders.segment_ranges("shop", "orders", others)
    with pytest.raises(NotFoundError):
        orders.segment_ranges("shop", "nowhere")


def test_truncated_ranges(orders: Headrace) -> None:
    start, end = scaled(orders)
    ranges = orders.segment_ranges("shop", "orders", start, end)
    middle = StreamCut.of(
        "shop", "orders", {part.segment_id: part.end for part in ranges if part.low == 0.0 and part.high == 1.0}
    )
    orders.admin.truncate_stream("shop", "orders", middle)
    with pytest.raises(TruncatedError):
        orders.segment_ranges("shop", "orders", start, end)
    deleted, *_ = ranges
    shortened = next(part for part in ranges if part.segment_id in middle.offsets)
    for part in (deleted, shortened):
        with orders.range_reader(part) as reader, pytest.raises(TruncatedError):
            reader.read_batch()
    left = orders.segment_ranges("shop", "orders", end=end)
    assert numbers_by_key(events_in(orders, left)) == in_order(range(200, 250))


def test_ranges_that_no_listing_has_made(orders: Headrace) -> None:
    write(orders, range(50))
    (part, _) = orders.segment_ranges("shop", "orders")
    with orders.range_reader(replace(part, start=4)) as reader, pytest.raises(CorruptError):
        list(reader)
    cut_off = orders.range_reader(replace(part, end=part.end - 1))
    with pytest.raises(CorruptError, match="ends inside the event"):
        list(cut_off)
    with pytest.raises(InvalidRequestError):
        orders.range_reader(replace(part, start=part.end + 1))
    with pytest.raises(InvalidRequestError):
        orders.range_reader(part, read_history_from=cast(Any, "disk"))


def test_closed_reader(orders: Headrace) -> None:
    write(orders, range(50))
    (part, _) = orders.segment_ranges("shop", "orders")
    reader: RangeReader = orders.range_reader(part)
    next(iter(reader))
    reader.close()
    reader.close()
    with pytest.raises(IllegalStateError):
        reader.read_batch()
    assert reader.unread.start > part.start


class HangingStore(StreamRanges):
    """Gives the bytes before `end - 1`, and does not answer the request for the last one until it is told to."""

    def __init__(self, headrace: Headrace) -> None:
        super().__init__(headrace.admin, "shop", "orders")
        self.asked, self.answers, self.closed = threading.Event(), threading.Event(), threading.Event()

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        yield from super().read(segment_id, start, stop - 1)
        self.asked.set()
        self.answers.wait()
        yield from super().read(segment_id, stop - 1, stop)

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_closing_a_reader_leaves_a_request_that_hangs(orders: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the request uses is closed after it, by its thread."""
    monkeypatch.setattr(range_reader, "CLOSE_TIMEOUT_S", 0.01)
    with orders.writer("shop", "orders") as writer:
        writer.write_batch([bytes(GATHERED_BYTES_MIN)] * 2, "key")
    *_, part = (
        segment_range for segment_range in orders.segment_ranges("shop", "orders") if segment_range.length_bytes
    )
    store = HangingStore(orders)
    monkeypatch.setattr(range_bytes, "StreamRanges", lambda *_, **options: store)
    reader = orders.range_reader(part, read_history_from="segment_store")
    assert reader.read_batch() is not None
    store.asked.wait()
    reader.close()
    assert not store.closed.is_set()
    store.answers.set()
    store.closed.wait()


@pytest.mark.parametrize("restarted", [False, True])
def test_large_events_are_not_split(headrace: Headrace, real: RealCluster, restarted: bool) -> None:
    """They come in pieces of 8 MiB, each an append of its own."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    sizes = [1000, 17 << 20, 1000, 9 << 20, 1000]
    with headrace.writer("shop", "orders") as writer:
        for size in sizes:
            writer.write(bytes(size), "key")
    if restarted:
        real.stop_store()
        real.start_store()
    parts = headrace.segment_ranges("shop", "orders", bytes_max=1 << 20)
    numbers: list[int] = []
    for part in parts:
        with headrace.range_reader(part, read_history_from="segment_store") as reader:
            numbers += [len(event.event) for event in reader]
    assert numbers == sizes
    assert len(parts) > 1 or restarted


@pytest.fixture
def requests_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The last parts of the paths that were requested since the last call."""
    seen: list[str] = []
    send = httpx.AsyncClient.send

    async def counted(client: httpx.AsyncClient, request: httpx.Request, **options: object) -> httpx.Response:
        seen.append(request.url.path.rpartition("/")[2])
        return await send(client, request, **options)  # type: ignore[arg-type]

    def taken() -> list[str]:
        found = list(seen)
        seen.clear()
        return found

    monkeypatch.setattr(httpx.AsyncClient, "send", counted)
    return taken


def test_many_ranges_and_pieces_take_two_requests(headrace: Headrace, requests_of: Callable[[], list[str]]) -> None:
    segments = 40
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(segments))
    with headrace.writer("shop", "orders") as writer:
        for number in range(40):
            writer.write_batch([b"%d" % each for each in range(100)], str(number))
            writer.flush()
        for number in range(40):
            writer.write_batch([b"%d" % each for each in range(100)], str(number))
    requests_of()
    pieces = headrace.segment_ranges("shop", "orders", bytes_max=1_000)
    assert requests_of() == ["next-cut", "range-plans"]
    whole = headrace.segment_ranges("shop", "orders")
    assert requests_of() == ["next-cut"]
    assert len(pieces) > len(whole)
    assert sum(part.length_bytes for part in pieces) == sum(part.length_bytes for part in whole)


def test_batches_are_joined_to_whole_ranges(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that answers with few segments at a time gives the same ranges."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    start = headrace.admin.stream_cut("shop", "orders", at="earliest")
    bounds = [0.0, 0.5, 1.0]
    for _ in range(4):
        with headrace.writer("shop", "orders") as writer:
            writer.write_batch([b"event"] * 50, "key")
        active = [segment.segment_id for segment in headrace.admin.segments("shop", "orders")]
        headrace.admin.scale_stream("shop", "orders", seal=active, ranges=list(itertools.pairwise(bounds)))
        bounds = [0.0, 1.0] if len(bounds) == 3 else [0.0, 0.3, 1.0]
    expected = ranges_to_read(segment_ranges(headrace.admin.segments_between("shop", "orders")))
    monkeypatch.setattr(reader_plans, "SEGMENTS_PER_CUT_MAX", 1)
    assert not headrace.admin.next_cut("shop", "orders").reached_end
    assert headrace.segment_ranges("shop", "orders", start) == expected


def test_next_cuts_of_the_client(headrace: Headrace, real: RealCluster) -> None:
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    head = headrace.admin.stream_cut("shop", "orders", at="earliest")
    with headrace.writer("shop", "orders") as writer:
        for number in range(10):
            writer.write(b"%d" % number, "key")
            writer.flush()
    first = headrace.admin.next_cut("shop", "orders", bytes_max=40)
    assert (first.start, first.end.offsets, first.length_bytes) == (head, {0: 45}, 45)
    assert (first.reached_end, first.left_bytes) == (False, 45)
    assert first.part(RangesBetween) == headrace.admin.segments_between("shop", "orders", first.start, first.end)
    headrace.admin.truncate_stream("shop", "orders", first.end)
    with pytest.raises(TruncatedError) as failed:
        headrace.admin.next_cut("shop", "orders", head)
    assert failed.value.details["lostBytes"] == 45
    skipped = headrace.admin.next_cut("shop", "orders", head, on_truncation="skip")
    assert (skipped.start, skipped.lost_bytes, skipped.reached_end) == (first.end, 45, True)
    assert [(lost_range.segment_id, lost_range.offset, lost_range.length) for lost_range in skipped.lost] == [
        (0, 0, 45)
    ]


@given(st.lists(st.integers(1, 3_000_000), max_size=60), st.integers(1, 5_000))
def test_requests_for_plans_stay_within_their_limits(lengths: list[int], piece_bytes: int) -> None:
    ranges = [SegmentRange("s", "t", number, 0.0, 1.0, 0, length) for number, length in enumerate(lengths)]
    requests = list(plan_requests(ranges, piece_bytes))
    assert [part for parts in requests for part in parts] == ranges
    for parts in requests:
        assert len(parts) <= RANGES_PER_PLAN_MAX
        pieces = [min(-(-part.length_bytes // piece_bytes), PIECES_PER_RANGE_MAX) for part in parts]
        assert 0 < sum(pieces) <= PIECES_PER_PLAN_MAX


def test_small_ranges_are_planned_by_the_thousand() -> None:
    ranges = [SegmentRange("s", "t", number, 0.0, 1.0, 0, 9) for number in range(RANGES_PER_PLAN_MAX + 1)]
    assert [len(parts) for parts in plan_requests(ranges, 10)] == [RANGES_PER_PLAN_MAX, 1]

"""The queue behind readers in the order of time, against a scripted store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest

from headrace import wire
from headrace.client.reading import time_order
from headrace.client.reading.segment_stream import EventBatch
from headrace.client.reading.time_order import SPANS_WAITING_MAX, TimeOrder
from headrace.client.single_segment.segment_requests import SegmentRequests
from headrace.model.errors import HeadraceError, NotFoundError, UnavailableError

pytestmark = pytest.mark.anyio

EVENT_BYTES = 10


class Last(NamedTuple):
    segment_id: int


class Store:
    """Answers for each segment as a test says."""

    def __init__(self) -> None:
        self.infos: dict[int, list[wire.WireCommand | HeadraceError]] = {}
        self.located: Callable[[int, wire.LocateOffset], wire.OffsetLocated] = lambda _, asked: wire.OffsetLocated(
            asked.request_id, asked.segment, 1 << 40, 0
        )
        self.asked: list[int] = []

    async def ask(self, segment_id: int, make: Callable[[int], Any]) -> wire.WireCommand:
        await asyncio.sleep(0)
        self.asked.append(segment_id)
        answer = self.infos[segment_id].pop(0)
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def ask_for(self, segment_id: int, make: Callable[[int], Any], _: object) -> wire.OffsetLocated:
        await asyncio.sleep(0)
        return self.located(segment_id, make(1))


def _order(store: Store, *segments: int) -> TimeOrder[EventBatch, Last]:
    order: TimeOrder[EventBatch, Last] = TimeOrder(cast(SegmentRequests, store), str, 1000)
    for segment_id in segments:
        order.open(segment_id, 0)
    return order


def _batch(segment_id: int, count: int = 1, offset: int = 0) -> EventBatch:
    return EventBatch(segment_id, offset, offset + count * EVENT_BYTES, [b"ab"] * count)


def _info(now_us: int, length: int = 0, *, sealed: bool = False, start: int = 0) -> wire.StreamSegmentInfo:
    return wire.StreamSegmentInfo(1, "", True, sealed, False, 0, length, start, now_us)


async def _settled() -> None:
    """Lets all tasks run until they wait for something else than each other."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_store_with_a_slow_clock_is_waited_for() -> None:
    store = Store()
    store.infos[2] = [_info(999_000), _info(1_000_001)]
    order = _order(store, 1, 2)
    await order.add(_batch(1), 1_000_000, at_tail=True)
    assert await order.get() == _batch(1)
    assert store.asked == [2, 2]


async def test_a_store_with_a_wrong_clock_stops_no_reader() -> None:
    store = Store()
    store.infos[2] = [_info(1)]
    order = _order(store, 1, 2)
    await order.add(_batch(1), 1_000_000_000, at_tail=True)
    assert await order.get() == _batch(1)


async def test_bytes_that_the_store_told_of_come_first() -> None:
    store = Store()
    store.infos[2] = [_info(2_000_000, EVENT_BYTES)]
    order = _order(store, 1, 2)
    await order.add(_batch(1), 1_000_000, at_tail=True)
    getting = asyncio.create_task(order.get())
    await _settled()
    assert (store.asked, getting.done()) == ([2], False)
    await order.add(_batch(2), 900_000, at_tail=True)
    assert await getting == _batch(2)
    await order.close()


async def test_successors_of_a_sealed_segment_come_first() -> None:
    """Its store answers that nothing came, but what was stored since is in a successor."""
    store = Store()
    store.infos[2] = [_info(3_000_000, sealed=True)]
    order = _order(store, 1, 2)
    await order.add(_batch(1), 2_000_000, at_tail=True)
    getting = asyncio.create_task(order.get())
    await _settled()
    assert (store.asked, getting.done()) == ([2], False)
    await order.end(Last(2))
    assert await getting == Last(2)
    order.open(3, 0)
    await order.add(_batch(3), 1_000_000, at_tail=True)
    assert await order.get() == _batch(3)
    store.infos[3] = [_info(3_000_000, EVENT_BYTES)]
    assert await order.get() == _batch(1)


async def test_a_segment_truncated_to_its_end_is_not_waited_for() -> None:
    store = Store()
    store.infos[2] = [_info(2_000_000, 500, start=500)]
    order = _order(store, 1, 2)
    await order.add(_batch(1), 1_000_000, at_tail=True)
    assert await order.get() == _batch(1)


async def test_an_unreachable_store_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_order, "ASK_AGAIN_S", 0.001)
    store = Store()
    store.infos[2] = [UnavailableError("away"), wire.NoSuchSegment(1, ""), _info(1_000_001)]
    order = _order(store, 1, 2)
    await order.add(_batch(1), 1_000_000, at_tail=True)
    assert await order.get() == _batch(1)
    assert store.asked == [2, 2, 2]


async def test_memory_of_a_segment_is_bounded() -> None:
    """The spans of a segment wait for the reader, and so do the reads behind them."""
    store = Store()
    store.located = lambda _, asked: wire.OffsetLocated(
        1, "", asked.target_offset + EVENT_BYTES - 1, asked.ordering_number
    )
    store.infos[2] = [_info(1 << 50)]
    order = _order(store, 1, 2)
    adding = asyncio.create_task(order.add(_batch(1, 100), 1, at_tail=False))
    await _settled()
    assert order._places[1].reached == SPANS_WAITING_MAX * EVENT_BYTES
    taken = [await order.get() for _ in range(100)]
    await adding
    assert taken == [_batch(1, 1, offset) for offset in range(0, 100 * EVENT_BYTES, EVENT_BYTES)]


async def test_bytes_truncated_after_they_were_read_are_returned() -> None:
    def gone(_: int, asked: wire.LocateOffset) -> wire.OffsetLocated:
        raise NotFoundError("gone")

    store = Store()
    store.located = gone
    store.infos[2] = [_info(1 << 50)]
    order = _order(store, 1, 2)
    await order.add(_batch(1, 7), 1, at_tail=False)
    assert await order.get() == _batch(1, 7)


async def test_a_batch_whose_time_is_not_found_is_not_skipped() -> None:
    """The reading ends with the error, and nothing behind the batch is returned."""

    def unavailable(segment_id: int, asked: wire.LocateOffset) -> wire.OffsetLocated:
        raise UnavailableError("away")

    store = Store()
    order = _order(store, 1, 2)
    working, store.located = store.located, unavailable
    await order.add(_batch(1, 7), 1, at_tail=False)
    store.located = working
    await order.add(_batch(1, 7, 7 * EVENT_BYTES), 1, at_tail=False)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await order.get()

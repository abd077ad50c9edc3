"""The batches of several segments in the order in which their bytes were stored: a queue between segments and reader.

The bytes of a segment are cut into spans. A span is shorter in time than the resolution, so that its first byte gives
the time of all of it; `model/time_points.py` merges the spans. The store knows where the next span begins and when it
was stored, also in tier 2 (Pravega's PDP 28). A segment without new events is not waited for: its store answers that
nothing came up to now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from headrace import wire
from headrace.client.closing import stop_tasks
from headrace.client.single_segment.segment_requests import SegmentRequests
from headrace.model.errors import HeadraceError, NotFoundError
from headrace.model.time_points import TimeMerge

SPANS_WAITING_MAX = 4
"""Of one segment, so that the memory of a segment is bounded while the reader waits for another one."""

CLOCK_DIFFERENCE_S_MAX = 1.0
"""For so long the reader waits for a store whose clock is behind. Beyond it the order across stores is not kept."""

ASK_AGAIN_S = 0.5
"""The bytes that the store has told of are on their way. They end the wait; this is only for when they do not come."""

_ANY_TIME = 1


class _Batch(Protocol):
    @property
    def segment_id(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def events(self) -> Any: ...

    def split(self, at: int) -> tuple[Any, Any]: ...


class _Last(Protocol):
    @property
    def segment_id(self) -> int: ...


B = TypeVar("B", bound=_Batch)
E = TypeVar("E", bound=_Last)


@dataclass(slots=True)
class _Place:
    """How far the bytes of one segment are cut. `following_us` is when the span after `span_end` begins, if known.

    `is_at_tail`: what comes next was written while the store held the read, so that it tells the exact time.
    """

    reached: int
    span_us: int = 0
    span_end: int = 0
    following_us: int = 0
    is_at_tail: bool = False
    is_cutting: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SPANS_WAITING_MAX))
    last: Any = None


class TimeOrder(Generic[B, E]):
    """Puts the batches of one reader in order. `name_of` gives the name of a segment of the stream."""

    def __init__(self, requests: SegmentRequests, name_of: Callable[[int], str], resolution_us: int) -> None:
        self._requests = requests
        self._name_of = name_of
        self._resolution_us = max(1, resolution_us)
        self._merge: TimeMerge[B | E] = TimeMerge()
        self._places: dict[int, _Place] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._holding_back: set[int] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    def open(self, segment_id: int, offset: int) -> None:
        """Adds a segment that is read from an offset on. Nothing is returned before it is known what it begins with."""
        self._merge.open(segment_id)
        self._places[segment_id] = _Place(offset)

    async def add(self, batch: B, stored_at_us: int, *, at_tail: bool) -> None:
        """Adds the next batch of a segment. Waits while too much of the segment waits for the reader.

        No byte of the batch is older than `stored_at_us`. `at_tail` tells that the store had no further bytes.
        """
        place = self._places[batch.segment_id]
        rest: B | None = batch
        try:
            while rest is not None:
                await place.room.acquire()
                place.is_cutting = True
                if not self._goes_on(place, rest):
                    await self._begin_span(place, rest, stored_at_us, at_tail=at_tail)
                span, rest = (rest, None) if rest.end_offset <= place.span_end else rest.split(place.span_end)
                place.is_cutting = False
                place.reached = span.end_offset
                self._merge.add(span.segment_id, place.span_us, span)
                place.arrived.set()
                self._changed.set()
            place.is_at_tail = at_tail
        except HeadraceError as problem:
            # Raised here, it would make the segment be read again from behind this batch.
            await self.fail(problem)

    async def end(self, last: E) -> None:
        """Adds what follows the last batch of a segment."""
        place = self._places[last.segment_id]
        place.last = last
        self._merge.end(last.segment_id, last)
        place.arrived.set()
        self._changed.set()

    async def fail(self, problem: BaseException) -> None:
        """Makes `get` raise from now on."""
        self._failure = self._failure or problem
        self._changed.set()

    async def get(self) -> B | E:
        """Waits for the next batch, or the end of a segment. Raises what ended the reading of a segment."""
        while True:
            if self._failure is not None:
                raise self._failure
            if (item := self._merge.next()) is not None:
                place = self._places[item.segment_id]
                if item is place.last:
                    del self._places[item.segment_id]
                else:
                    place.room.release()
                return item
            self._changed.clear()
            self._holding_back = set(self._merge.awaited())
            for segment_id in self._holding_back:
                if segment_id not in self._asking and not self._places[segment_id].is_cutting:
                    self._asking[segment_id] = asyncio.get_running_loop().create_task(self._ask(segment_id))
            await self._changed.wait()

    async def close(self) -> None:
        await stop_tasks(self._asking.values())

    def _goes_on(self, place: _Place, batch: B) -> bool:
        """Whether the batch begins in the current span. A single segment is in order, and needs no spans."""
        if batch.offset < place.span_end:
            return True
        if len(self._places) == 1:
            place.span_end, place.following_us = batch.end_offset, 0
            return True
        return False

    async def _begin_span(self, place: _Place, batch: B, stored_at_us: int, *, at_tail: bool) -> None:
        """Finds when the span that begins with the batch was stored, and where it ends."""
        known_us = place.following_us if batch.offset == place.span_end else 0
        if not known_us and not place.is_at_tail:
            found = await self._locate(batch, batch.offset, _ANY_TIME)
            known_us = found.ordering_number
            if found.offset > batch.offset:
                known_us = await self._time_inside(batch, stored_at_us, known_us)
        place.span_us = max(known_us, stored_at_us)
        if at_tail and len(batch.events) == 1:
            # The usual case while the reader keeps up. What follows is read from memory, with its exact time.
            place.span_end, place.following_us = batch.end_offset, 0
            return
        found = await self._locate(batch, batch.offset + 1, place.span_us + self._resolution_us)
        place.span_end, place.following_us = found.offset, found.ordering_number

    async def _time_inside(self, batch: B, older_us: int, newer_us: int) -> int:
        """Returns when the append was stored in which the batch begins: not before `older_us`, nor after `newer_us`.

        The store finds only the starts of appends, so this searches for the last time at which an append before the
        batch was stored. The result may be earlier than that time, by less than the resolution.
        """
        middle_us = older_us + self._resolution_us  # in memory the store knows the time of the first byte
        while newer_us - older_us > self._resolution_us:
            if (await self._locate(batch, 0, middle_us)).offset < batch.offset:
                older_us = middle_us
            else:
                newer_us = middle_us
            middle_us = (older_us + newer_us) // 2
        return older_us

    async def _locate(self, batch: B, offset: int, ordering: int) -> wire.OffsetLocated:
        """Returns the first append at `offset` or behind that is not older than `ordering`."""
        name = self._name_of(batch.segment_id)
        try:
            return await self._requests.ask_for(
                batch.segment_id,
                lambda request_id: wire.LocateOffset(request_id, name, offset, "", ordering),
                wire.OffsetLocated,
            )
        except NotFoundError:  # truncated away meanwhile; the bytes that were read are still returned
            return wire.OffsetLocated(0, name, batch.end_offset)

    async def _ask(self, segment_id: int) -> None:
        """Asks a segment's store, until the segment no longer holds others back, whether it has something new."""
        name, place = self._name_of(segment_id), self._places[segment_id]
        try:
            while (until_us := self._merge.awaited_until(segment_id)) is not None:
                place.arrived.clear()
                reply = await self._requests.ask(segment_id, lambda number: wire.GetStreamSegmentInfo(number, name))
                pause_s = ASK_AGAIN_S
                if isinstance(reply, wire.StreamSegmentInfo) and self._has_nothing(segment_id, reply):
                    pause_s = (until_us - reply.ordering_number) / 1e6
                    if not 0 < pause_s <= CLOCK_DIFFERENCE_S_MAX:
                        self._merge.nothing_before(segment_id, max(until_us, reply.ordering_number))
                        continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await place.arrived.wait()
        except HeadraceError:
            await asyncio.sleep(ASK_AGAIN_S)  # the segment's reads fail as well, and report it
        finally:
            del self._asking[segment_id]
            self._holding_back.discard(segment_id)
            if not self._holding_back:
                self._changed.set()

    def _has_nothing(self, segment_id: int, told: wire.StreamSegmentInfo) -> bool:
        """Whether all bytes of the segment were read when the store answered. After a seal its successors follow."""
        place = self._places.get(segment_id)
        return place is not None and not told.is_sealed and told.write_offset <= max(place.reached, told.start_offset)

"""Reads one segment's events, window by window, from an offset to a stop or to the segment's end.

While a window is parsed and handed on, the next one is already asked for; at the tail the store holds the request until
something is written. Lost connections and moved segments are followed from exactly where the reading stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from headrace import wire
from headrace.client.back_off import BackOff
from headrace.client.connections import Flow, SegmentConnections, SingleReply, answer_within, problem_of
from headrace.codec.events import EventAssembler
from headrace.model.errors import CorruptError, HeadraceError, TruncatedError

READ_TIMEOUT_S = 60.0
"""A store holds a request at the tail for 10 to 20 s."""

OnTruncation = Literal["error", "skip"]


class EventBatch(NamedTuple):
    """Consecutive events of one segment: `offset` is where the first begins, `end_offset` where the last ends."""

    segment_id: int
    offset: int
    end_offset: int
    events: list[bytes]


class SegmentStream:
    """The reading of one segment, for one run of `run`."""

    def __init__(
        self,
        connections: SegmentConnections,
        segment_id: int,
        segment_name: str,
        *,
        start: int,
        stop: int | None,
        window_bytes: int,
        on_truncation: OnTruncation,
        back_off: BackOff,
    ) -> None:
        self.segment_id = segment_id
        self._connections = connections
        self._name = segment_name
        self._stop = stop
        self._window_bytes = window_bytes
        self._on_truncation = on_truncation
        self._back_off = back_off
        self._assembler = EventAssembler(start)
        self._ended = stop is not None and start >= stop

    async def run(self, deliver: Callable[[EventBatch], Awaitable[None]]) -> None:
        """Hands all events to `deliver`, and returns at the stop or the end of the segment.

        Raises:
            TruncatedError: bytes to be read are gone (and may not be skipped).
            CorruptError: the segment does not hold events from here on, or not up to the stop.
            UnavailableError: its store could not be reached for too long.
        """
        while not self._ended:
            try:
                await self._converse(deliver)
            except HeadraceError as problem:
                if problem.retry == "never":
                    raise
                self._connections.forget(self.segment_id)
                await self._back_off.wait(problem)
        self._connections.forget(self.segment_id)

    async def _converse(self, deliver: Callable[[EventBatch], Awaitable[None]]) -> None:
        """Reads over one connection until the end, or until it is lost."""
        connection = await self._connections.to_segment(self.segment_id)
        replies = SingleReply()
        flow = connection.open_flow(replies)
        try:
            asked_at = self._next_offset
            waiting = self._ask(flow, replies)
            while not self._ended:
                data = self._data_of(flow, await answer_within(flow, waiting, READ_TIMEOUT_S), asked_at)
                self._back_off.progress()
                asked_at = self._next_offset + len(data)
                if not self._ended:
                    waiting = self._ask(flow, replies, after=len(data))
                batch = self._parse(data)
                del data  # the connection has few buffers for replies, and would have to make another one
                if batch is not None:
                    await deliver(batch)
            if self._assembler.cut_off_bytes:
                raise CorruptError(
                    f"{self._name}: the reading ends inside an event at offset {self._assembler.offset}; "
                    "a stream cut must lie between events",
                    details={"segment": self._name, "offset": self._assembler.offset},
                )
        finally:
            flow.close()

    @property
    def _next_offset(self) -> int:
        return self._assembler.offset + self._assembler.cut_off_bytes

    def _ask(self, flow: Flow, replies: SingleReply, after: int = 0) -> asyncio.Future[wire.WireCommand]:
        offset = self._next_offset + after
        length = self._window_bytes if self._stop is None else min(self._window_bytes, self._stop - offset)
        return replies.ask(flow, wire.ReadSegment(self._name, offset, length, request_id=flow.next_id()))

    def _data_of(self, flow: Flow, reply: wire.WireCommand, asked_at: int) -> memoryview:
        """What the reply brings of the bytes from `asked_at` on, up to the stop; whether that is all is noted."""
        if not isinstance(reply, wire.SegmentRead):
            self._no_data(flow, reply)
            return memoryview(b"")
        if reply.offset != asked_at:
            raise CorruptError(f"{self._name}: asked for offset {asked_at}, got bytes of {reply.offset}")
        data = memoryview(reply.data)
        if self._stop is not None:
            data = data[: self._stop - asked_at]
        self._ended = self._ended_with(reply, asked_at + len(data))
        return data

    def _ended_with(self, reply: wire.SegmentRead, offset: int) -> bool:
        if self._stop is None:
            return reply.end_of_segment
        if offset < self._stop and reply.end_of_segment:
            raise CorruptError(f"{self._name} ends at {offset}, before the end {self._stop} of the stream cut")
        return offset >= self._stop

    def _no_data(self, flow: Flow, reply: wire.WireCommand) -> None:
        """The segment has ended or begins later now; everything else is an error."""
        skip = self._on_truncation == "skip"
        if isinstance(reply, wire.SegmentIsSealed) and self._stop is None:
            self._ended = True
        elif isinstance(reply, wire.NoSuchSegment) and skip:
            self._assembler = EventAssembler(self._assembler.offset)
            self._ended = True
        elif isinstance(reply, wire.SegmentIsTruncated) and skip and reply.start_offset > self._next_offset:
            self._assembler = EventAssembler(reply.start_offset)
            self._ended = self._stop is not None and reply.start_offset >= self._stop
        elif isinstance(reply, wire.NoSuchSegment):
            raise TruncatedError(
                f"segment {self._name} was deleted: its events are gone; start at the head of the stream",
                details={"segment": self._name},
            )
        else:
            raise problem_of(flow, reply)

    def _parse(self, data: memoryview) -> EventBatch | None:
        """The events that are complete with these bytes."""
        offset = self._assembler.offset
        events = self._assembler.add(data) if data else []
        return EventBatch(self.segment_id, offset, self._assembler.offset, events) if events else None

"""Reads of one connection. The store answers from memory at once, and from tier 2 in a task.

A read at the tail is held until there is data. Replies are sent as views of the cache. A peer that does not take them
gets no further replies until it does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace import wire
from headrace.model.errors import FencedError, HeadraceError, NotFoundError
from headrace.ports.clock import Clock
from headrace.segmentstore.cache.reservations import Block
from headrace.segmentstore.connections.connection_limits import (
    HELD_READS_MAX,
    READ_AHEADS_MAX,
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    STORAGE_READS_MAX,
    TAIL_HOLD_S,
)
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.tiering.range_cache import ReadAhead
from headrace.segmentstore.tiering.storage_reader import StoredBytes

if TYPE_CHECKING:
    from headrace.segmentstore.connections.session import Session
    from headrace.segmentstore.containers.segment import Segment


# The reads of a process that wait at the tails of segments: how many there may be, and how they are woken.
#
# One append can wake the readers of thousands of connections. They are woken in portions, one in each turn of the event
# loop, so that other connections get their turns meanwhile.

HELD_READS_PER_PROCESS_MAX: Final = 20_000
HELD_READS_PER_SEGMENT_MAX: Final = 2_000
"""Beyond this an earlier read gets an empty reply, after which clients ask again: one of the same connection if there
is any, and otherwise the oldest one."""

WAKES_PER_TURN_MAX: Final = 50
WAKES_TURN_S: Final = 0.002
"""Reads that are woken in one turn of the event loop, and the time for them. Each takes some 60 microseconds."""


class HeldRead(Protocol):
    """A read that waits for a change of its segment."""

    def on_news(self) -> None:
        """Read again, because the segment has changed."""
        ...

    def answer_empty(self) -> None:
        """Send an empty reply, after which the client asks again."""
        ...


class HeldReads:
    """Wakes held reads in the order in which their segments changed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[HeldRead, None] = {}  # the oldest first
        self._ready: deque[HeldRead] = deque()
        self._woken = 0
        self._started_s = 0.0
        self._turn_scheduled = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        return len(self._held) >= HELD_READS_PER_PROCESS_MAX

    def add(self, held: HeldRead) -> None:
        self._held[held] = None

    def answer_oldest(self) -> None:
        """Send an empty reply to the read that has waited longest."""
        next(iter(self._held)).answer_empty()

    def remove(self, held: HeldRead) -> None:
        """Forget a read that was answered or whose connection is closed. It may be one of those to be woken."""
        self._held.pop(held, None)

    def wake(self, held: HeldRead) -> None:
        """Call `on_news` of a read in this turn of the event loop or in one of the next."""
        if self._ready or self._turn_is_over:
            self._ready.append(held)
        else:
            self._wake_now(held)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    @property
    def _turn_is_over(self) -> bool:
        if not self._woken:
            self._started_s = self._clock.monotonic_s()
            return False
        return self._woken >= WAKES_PER_TURN_MAX or self._clock.monotonic_s() - self._started_s >= WAKES_TURN_S

    def _next_turn(self) -> None:
        self._woken = 0
        try:
            while self._ready and not self._turn_is_over:
                self._wake_now(self._ready.popleft())
        finally:  # a read that fails keeps no other one from its turn
            self._turn_scheduled = bool(self._ready or self._woken)
            if self._turn_scheduled:
                asyncio.get_running_loop().call_soon(self._next_turn)

    def _wake_now(self, held: HeldRead) -> None:
        if held in self._held:
            self._woken += 1
            held.on_news()


class ReadProcessor:
    """The reads of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.held_reads = session.store.held_reads
        self._held: dict[_HeldRead, None] = {}  # the oldest first
        self._unsent: deque[wire.ReadSegment] = deque()
        self._storage_reads = 0
        self._ahead: dict[str, ReadAhead] = {}

    @property
    def full(self) -> bool:
        """Whether this connection has reached its limit of open reads."""
        return len(self._held) + len(self._unsent) >= HELD_READS_MAX

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def is_waiting(self) -> bool:
        """Whether reads wait until replies can be sent, or until tier 2 answers."""
        return bool(self._unsent)

    def handlers(self) -> dict[type[wire.WireCommand], Callable[[Any], None]]:
        return {wire.ReadSegment: self.read}

    def close(self) -> None:
        for held in list(self._held):
            held.cancel()
        self._held.clear()
        self._unsent.clear()
        for ahead in self._ahead.values():
            ahead.close()
        self._ahead.clear()

    def sending_possible(self) -> None:
        """Continue the reads that waited: until earlier replies were sent and taken, or until tier 2 answered."""
        session = self._session
        while self._unsent and self._storage_reads < STORAGE_READS_MAX and session.may_read and not session.closed:
            self._repeat(self._unsent.popleft())

    def _repeat(self, command: wire.ReadSegment) -> None:
        """Read for a command that has waited. Its token may have ended meanwhile."""
        tokens = self._session.tokens
        if tokens is None or tokens.admits(command):
            self.read(command)

    def read(self, command: wire.ReadSegment) -> None:
        session = self._session
        if not session.may_read:
            self._unsent.append(command)
            return
        try:
            owned = session.store.owner_of(command.segment)
        except FencedError as error:
            session.send(wire.reply_of_error(error, wire.Refused(command.request_id, command.segment)))
            return
        segment = owned.container.metadata.segments.get(command.segment)
        if segment is None:
            self._read_absent(owned, command)
            return
        segment.used_s = session.store.clock.monotonic_s()
        if command.offset < segment.accepted.start_offset:
            self._reply_later(
                owned,
                wire.SegmentIsTruncated(
                    command.request_id, command.segment, segment.accepted.start_offset, "", command.offset
                ),
            )
        elif command.offset >= segment.durable.length:
            self._at_tail(owned, segment, command)
        else:
            self._answer(owned, segment, command)

    def _read_absent(self, owned: OwnedContainer, command: wire.ReadSegment) -> None:
        if owned.container.metadata.may_be_evicted(command.segment):
            self._session.run(self._read_evicted(owned, command))
        else:
            self._reply_later(owned, wire.NoSuchSegment(command.request_id, command.segment, "", command.offset))

    async def _read_evicted(self, owned: OwnedContainer, command: wire.ReadSegment) -> None:
        try:
            segment = await owned.container.find(command.segment)
        except HeadraceError as error:
            self._fail(command, error)
            return
        if segment is not None:
            self._repeat(command)
        else:
            self._reply_later(owned, wire.NoSuchSegment(command.request_id, command.segment, "", command.offset))

    def _fail(self, command: wire.ReadSegment, error: HeadraceError) -> None:
        """Send the error and close the connection. The reader then repeats the read on a new connection."""
        self._session.send(wire.failure_reply(error, wire.Refused(command.request_id, command.segment)))
        self._session.close()

    def _reply_later(self, owned: OwnedContainer, reply: wire.WireCommand) -> None:
        owned.container.log.when_durable(lambda: self._session.send(reply), self._session.abort)

    def _at_tail(self, owned: OwnedContainer, segment: Segment, command: wire.ReadSegment) -> None:
        if not segment.durable.sealed:
            self._make_room(segment)
            self._held[_HeldRead(self, owned, segment, command)] = None
        elif command.offset == segment.durable.length:
            ordering = owned.container.log.upcoming_ordering
            self._send_data(command, [], [], ordering, at_tail=True, end_of_segment=True)
        else:
            message = f"offset {command.offset} is after the end of a sealed segment of {segment.durable.length} bytes"
            self._session.send(
                wire.ErrorMessage(command.request_id, command.segment, message, wire.ERROR_CODE_ILLEGAL_ARGUMENT)
            )

    def _make_room(self, segment: Segment) -> None:
        """Send an empty reply to an earlier read if there are too many at the tail of this segment or in the process.

        An own one comes first, so that a connection with many reads takes the place of no other one.
        """
        waiters = segment.durable.waiters
        if len(waiters) >= HELD_READS_PER_SEGMENT_MAX:
            oldest = next(iter(waiters))
            held = next((held for held in self._held if held.segment is segment), oldest)
            if isinstance(held, _HeldRead):
                held.answer_empty()
        elif self.held_reads.is_full:
            if self._held:
                next(iter(self._held)).answer_empty()
            else:
                self.held_reads.answer_oldest()

    def _answer(self, owned: OwnedContainer, segment: Segment, command: wire.ReadSegment) -> None:
        length = min(READ_BYTES_MAX, max(READ_BYTES_MIN, command.suggested_length))
        length = min(length, segment.durable.length - command.offset)
        loads = command.offset >= segment.tiered.length and not owned.backfill.is_done
        if not loads:
            parts, blocks = segment.index.read(command.offset, length)
            if parts:
                self._send_found(segment, command, parts, blocks, segment.times.ordering_at(command.offset))
                return
        if self._storage_reads >= STORAGE_READS_MAX:
            self._unsent.append(command)
            return
        self._storage_reads += 1
        if loads:
            self._session.run(self._read_loaded(owned, command))
            return
        in_memory = segment.index.next_in_memory(command.offset)
        if in_memory is not None:
            length = min(length, in_memory - command.offset)
        self._session.run(self._read_storage(owned, segment, command, length))

    async def _read_loaded(self, owned: OwnedContainer, command: wire.ReadSegment) -> None:
        try:
            await owned.backfill.wait()
        except HeadraceError as error:
            self._fail(command, error)
            return
        finally:
            self._storage_reads -= 1
        self._repeat(command)
        self.sending_possible()

    async def _read_storage(
        self, owned: OwnedContainer, segment: Segment, command: wire.ReadSegment, length: int
    ) -> None:
        try:
            stored = await self._read_counted(owned, segment, command, length)
        except NotFoundError:
            self.read(command)  # the segment was removed or truncated meanwhile; this sends the reply for that
            self.sending_possible()
            return
        except HeadraceError as error:
            self._fail(command, error)
            return
        metrics = self._session.store.metrics
        metrics.storage_reads += 1
        metrics.storage_read_bytes += len(stored.data)
        self._send_found(segment, command, [stored.data], [], stored.ordering, stored.token)
        self.sending_possible()

    async def _read_counted(
        self, owned: OwnedContainer, segment: Segment, command: wire.ReadSegment, length: int
    ) -> StoredBytes:
        ahead = self._ahead.pop(command.segment, None) or owned.reader.read_ahead()
        self._ahead[command.segment] = ahead
        if len(self._ahead) > READ_AHEADS_MAX:
            self._ahead.pop(next(iter(self._ahead))).close()
        try:
            return await owned.reader.read(segment, command.offset, length, command.token, ahead)
        finally:
            self._storage_reads -= 1
            if self._session.closed:
                ahead.close()

    def _send_found(
        self,
        segment: Segment,
        command: wire.ReadSegment,
        parts: list[memoryview],
        blocks: list[Block],
        ordering: int,
        token: bytes = b"",
    ) -> None:
        length, metrics = sum(map(len, parts)), self._session.store.metrics
        metrics.reads += 1
        metrics.read_bytes += length
        reached = command.offset + length >= segment.durable.length
        end_of_segment = reached and segment.durable.sealed
        self._send_data(command, parts, blocks, ordering, token, at_tail=reached, end_of_segment=end_of_segment)

    def _send_data(
        self,
        command: wire.ReadSegment,
        parts: list[memoryview],
        blocks: list[Block],
        ordering: int,
        token: bytes = b"",
        *,
        at_tail: bool,
        end_of_segment: bool,
    ) -> None:
        reply = wire.SegmentRead(
            command.segment, command.offset, at_tail, end_of_segment, b"", command.request_id, ordering, token
        )
        head, tail = wire.encode_around(reply, sum(map(len, parts)))
        self._session.send_parts([head, *parts, tail], blocks)

    def release(self, held: _HeldRead, *, again: bool) -> None:
        """End a held read: repeat it because the segment has changed (`again`), or send an empty reply."""
        self._held.pop(held, None)
        if self._session.closed:
            return
        if again:
            self._repeat(held.command)
        else:
            self._send_data(held.command, [], [], held.ordering, at_tail=True, end_of_segment=False)
        self._session.commands_possible()  # while there were too many, none was received


class _HeldRead:
    """A read that waits at the tail of its segment."""

    __slots__ = ("_owned", "_processor", "_timer", "command", "segment")

    def __init__(
        self, processor: ReadProcessor, owned: OwnedContainer, segment: Segment, command: wire.ReadSegment
    ) -> None:
        self.command = command
        self.segment = segment
        self._processor = processor
        self._owned = owned
        self._timer = asyncio.get_running_loop().call_later(TAIL_HOLD_S, self.answer_empty)
        segment.durable.add_waiter(self)
        processor.held_reads.add(self)

    @property
    def ordering(self) -> int:
        """The ordering number of the next byte: that of an append that is not durable yet, or of an append now."""
        segment, offset = self.segment, self.command.offset
        return (
            segment.times.ordering_at(offset)
            if offset < segment.accepted.length
            else self._owned.container.log.upcoming_ordering
        )

    def __call__(self) -> None:
        """Note that the segment has changed."""
        self._processor.held_reads.wake(self)

    def cancel(self) -> None:
        self._timer.cancel()
        self.segment.durable.remove_waiter(self)
        self._processor.held_reads.remove(self)

    def on_news(self) -> None:
        self.cancel()
        self._processor.release(self, again=True)

    def answer_empty(self) -> None:
        self.cancel()
        self._processor.release(self, again=False)

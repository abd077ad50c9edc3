"""Appends the blocks of one segment: pipelined, with event numbers, and resumed after interruptions.

Appends are exactly once, because each appender has a writer id and event numbers of its own. After a reconnect the
store returns the last number that it has stored. Blocks up to this number are acknowledged; the rest are sent again
with the same numbers. If the segment is sealed, the appender requests the number once more, and only then moves the
rest to the successors.

A store forgets a writer that was disconnected for very long. If no block is in flight, the appender then continues as a
new writer; otherwise the blocks in flight fail.

With an expected offset, each block is appended only where the one before it ended. Then one block is in flight: after a
block was refused, the next one could find the segment at its offset by chance.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, SupportsIndex

from headrace import wire
from headrace.client.backoff import Backoff
from headrace.client.large_events import append_large
from headrace.client.ownership import other_loop
from headrace.client.segment_connections import SegmentConnections
from headrace.client.writing import elapsed_time
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_blocks import Block, SegmentQueue, Wants
from headrace.futures import mark_retrieved
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.limits import WRITER_KEPT_S_MIN
from headrace.wire.connections.asynchronous import (
    AsyncConnection,
    Flow,
    SingleReply,
    answer_within,
    appending_ended,
    close_unresponsive,
    problem_of,
)

BLOCKS_IN_FLIGHT = 4
"""The number of unacknowledged blocks of one segment, enough to keep the store's group commit busy."""

APPEND_TIMEOUT_S = 30.0
"""After this time without a reply to an append, the appender reconnects and sends it again."""

WRITER_ID_BITS = 128

OTHER_OFFSET = "not_at_expected_offset"
"""The code of the error of an append that another writer has overtaken."""

_GONE = (SealedError, NotFoundError)


class AppendOwner(Protocol):
    """The writer that owns an appender, as the appender sees it."""

    async def segment_replaced(self, appender: SegmentAppender) -> None:
        """The segment is sealed: moves its unacknowledged events to the successors, or raises why there are none."""
        ...

    def segment_failed(self, appender: SegmentAppender, error: HeadraceError) -> None:
        """Called when the appender stops with an error: it will acknowledge no more events."""
        ...


class SegmentAppender:
    """The appender of one segment. It runs on the event loop; `pump` wakes it when there are events to send."""

    def __init__(
        self,
        owner: AppendOwner,
        connections: SegmentConnections,
        accumulator: BatchAccumulator,
        *,
        segment_id: int,
        segment_name: str,
        writer_id: int,
        new_backoff: Callable[[], Backoff],
        wake: Callable[[Callable[[], None]], object],
        expected_offset: SupportsIndex | None = None,
        ensure_segment: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wake(pump)` schedules the call on the event loop from any thread.

        `ensure_segment` is awaited before each connection; it creates a segment that does not exist before its first
        event.
        `expected_offset` is where the first block must be appended, in bytes, as an integer of any kind. None means
        wherever the segment ends.
        """
        self.segment_id = segment_id
        self.segment_name = segment_name
        self.in_flight: deque[Block] = deque()
        self.acknowledged_offset: int | None = 0
        """The offset after the last acknowledged event, in bytes: 0 before the first, None if it is not known."""
        self.queue: SegmentQueue = accumulator.new_queue(segment_id, lambda: wake(self.pump))
        self._owner = owner
        self._connections = connections
        self._accumulator = accumulator
        self._writer_id = writer_id
        self._expected_offset = None if expected_offset is None else int(expected_offset)
        self._blocks_in_flight = BLOCKS_IN_FLIGHT if expected_offset is None else 1
        self._ensure_segment = ensure_segment
        self._backoff = new_backoff()
        self._setup = SingleReply()
        self._flow: Flow | None = None
        self._ended: asyncio.Future[wire.WireCommand | None] | None = None
        self._last_number = 0
        self._must_renew = False
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def pump(self) -> None:
        """Sends the blocks that can be sent now. Connects first if there is no connection."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._broke)
        elif self._ended is not None and not self._ended.done():  # otherwise the events are sent after the next set-up
            self._send()

    def stop(self) -> Awaitable[object]:
        """Stops appending at once. The outcome of the blocks in flight stays unknown. `await` the end of the task."""
        self._is_stopped = True
        tasks = [] if self._task is None else [self._task]
        for task in tasks:
            task.cancel()
        return asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._has_work():
                try:
                    problem = await self._converse()
                except HeadraceError as error:
                    problem = error
                if isinstance(problem, _GONE):
                    await self._owner.segment_replaced(self)
                    return
                if problem.retry == "never" or problem.specific_code == OTHER_OFFSET:
                    raise problem
                self._connections.forget(self.segment_id)
                if self._has_work():
                    await self._backoff.wait(problem)
            self._task = None
        except HeadraceError as error:
            self._owner.segment_failed(self, error)

    def _broke(self, task: asyncio.Task[None]) -> None:
        """Fails the segment after an unexpected exception, because its writers would otherwise wait forever."""
        if task.cancelled():
            if not self._is_stopped:  # the event loop ends
                self._owner.segment_failed(self, other_loop())
        elif (error := task.exception()) is not None:
            failure = HeadraceError(f"appending to {self.segment_name} failed unexpectedly: {error!r}")
            self._owner.segment_failed(self, failure)

    def _has_work(self) -> bool:
        """Whether events are to be sent or acknowledged. If not, the next event wakes the appender."""
        return bool(self.in_flight) or self._accumulator.has_events(self.queue, wake_on=Wants.ANY_EVENT)

    async def _converse(self) -> HeadraceError:
        """Appends over one connection until an error. Returns the error."""
        if self._ensure_segment is not None:
            await self._ensure_segment()
        connection = await self._connections.to_segment(self.segment_id)
        self._setup = SingleReply()
        flow = self._flow = connection.open_flow(self, self.segment_id)
        renewal: asyncio.Task[None] | None = None
        try:
            while True:
                reply = await self._set_up(flow)
                if not isinstance(reply, wire.AppendSetup):
                    return self._unsettled(problem_of(flow, reply))
                if self._setup.problem is not None:  # it came right behind the reply
                    return self._setup.problem
                if reply.last_event_number == wire.NO_EVENT_NUMBER and self._last_number:
                    self._check_undecided()
                    if not self.in_flight:
                        self._start_over()
                        continue
                renewal = self._connections.tokens.when_replaced(self.segment_name, self._setup.token, self._renew)
                self._resume(flow, reply.last_event_number)
                self._ended = asyncio.get_running_loop().create_future()
                self._ended.add_done_callback(mark_retrieved)
                self._send()
                ended = await self._until_ended(flow, self._ended)
                self._ended = None
                if renewal is not None:
                    renewal.cancel()
                if ended is not None:
                    problem: HeadraceError | None = self._problem_of(flow, ended)
                else:  # without a block in flight the token is to be renewed
                    problem = await self._append_large(connection) if self.in_flight else None
                if problem is not None:
                    break
            if isinstance(problem, SealedError) and self.in_flight:
                reply = await self._set_up(flow)
                if not isinstance(reply, wire.AppendSetup):
                    return self._unsettled(problem_of(flow, reply))
                self._complete(reply.last_event_number)
            return problem
        finally:
            self._ended = None
            if renewal is not None:
                renewal.cancel()
            flow.close()

    def _renew(self) -> None:
        """Has the writer set up again with the newest delegation token, as soon as no block is in flight."""
        self._must_renew = True
        if self._ended is not None and not self._ended.done():
            self._send()

    async def _set_up(self, flow: Flow) -> wire.WireCommand:
        self._must_renew = False
        request = wire.SetupAppend(flow.next_id(), self._writer_id, self.segment_name)
        return await answer_within(flow, self._setup.ask(flow, request), APPEND_TIMEOUT_S)

    def _unsettled(self, problem: HeadraceError) -> HeadraceError:
        """Returns the error of a refused set-up.

        Blocks in flight may be stored already. They must not move to a successor before a set-up has told which ones
        are, so a sealed segment counts as unavailable until then.
        """
        if isinstance(problem, SealedError) and self.in_flight:
            return UnavailableError(
                f"sealed segment {self.segment_name} does not report which events in flight it has stored",
                details={"segment": self.segment_name},
            )
        return problem

    def _problem_of(self, flow: Flow, ended: wire.WireCommand) -> HeadraceError:
        if isinstance(ended, wire.ConditionalCheckFailed):
            return ConflictError(
                f"segment {self.segment_name} does not end at offset {self._expected_offset}: another writer has "
                "appended to it; read on from there, and open a writer at the tail",
                details={"segment": self.segment_name, "expected_offset": self._expected_offset},
                code=OTHER_OFFSET,
            )
        return appending_ended() if isinstance(ended, wire.AuthTokenCheckFailed) else problem_of(flow, ended)

    async def _append_large(self, connection: AsyncConnection) -> SealedError | None:
        """Appends the large event that is first in flight. Returns an error if the segment is sealed.

        The merge appends the event without this connection's writer, so the caller must set the writer up again.
        """
        block = self.in_flight[0]
        try:
            await append_large(connection, block, self.segment_id, self.segment_name, self._writer_id)
        except SealedError as error:
            return error
        self._complete(block.last_number)
        return None

    async def _until_ended(self, flow: Flow, ended: asyncio.Future[wire.WireCommand | None]) -> wire.WireCommand | None:
        """Waits for the reply that ends the appending; None if a large event or a new delegation token is next.

        Raises:
            UnavailableError: the store acknowledged nothing for APPEND_TIMEOUT_S.
        """
        while True:
            oldest = self.in_flight[0] if self.in_flight else None
            await asyncio.wait({ended}, timeout=APPEND_TIMEOUT_S)
            if ended.done():
                return ended.result()
            if oldest is not None and self.in_flight and self.in_flight[0] is oldest:
                raise close_unresponsive(flow, APPEND_TIMEOUT_S)

    def _check_undecided(self) -> None:
        """Raises IllegalStateError if the store may have stored a block in flight, and forgotten the writer since."""
        if self.in_flight and self.in_flight[0].sent_at.elapsed_s() >= WRITER_KEPT_S_MIN:
            raise IllegalStateError(
                f"events in flight to segment {self.segment_name} were sent more than {WRITER_KEPT_S_MIN:g} s ago: the "
                "store may have forgotten whether it has stored them; read the stream to check, and open a new writer",
                details={"segment": self.segment_name},
                code=wire.WRITER_FORGOTTEN,
            )

    def _start_over(self) -> None:
        """Continues as a new writer, because the store has forgotten this one.

        No event can be stored twice, because none is in flight.
        """
        self._writer_id = secrets.randbits(WRITER_ID_BITS)
        self._last_number = 0

    def _resume(self, flow: Flow, last_event_number: int) -> None:
        """Acknowledges the blocks that the store has, and sends the others again."""
        self._complete(last_event_number)
        for block in self.in_flight:
            if not block.is_large:
                self._send_block(flow, block)

    def _send(self, *, acknowledged: bool = False) -> None:
        """Sends full blocks. A block that is not full is sent if none is in flight, or after an acknowledgement.

        A large event waits until all events before it are acknowledged, and all later events wait for it.
        """
        flow = self._flow
        assert flow is not None, "only called while a flow is open"
        while (count := len(self.in_flight)) < self._blocks_in_flight and not (count and self.in_flight[-1].is_large):
            if self._must_renew:
                break
            wake_on = Wants.FULL_BLOCK if count else Wants.ANY_EVENT
            block = self._accumulator.take(self.queue, allow_partial=acknowledged or not count, wake_on=wake_on)
            if block is None:
                break
            acknowledged = False
            self._last_number += block.count
            block.last_number = self._last_number
            block.sent_at = elapsed_time.now()
            self.in_flight.append(block)
            if not block.is_large:
                self._send_block(flow, block)
        is_interrupted = self.in_flight[0].is_large if self.in_flight else self._must_renew
        if is_interrupted and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _send_block(self, flow: Flow, block: Block) -> None:
        data, number, request_id = block.seal(), block.last_number, flow.next_id()
        command: wire.WireCommand
        if self._expected_offset is None:
            command = wire.AppendBlockEnd(self._writer_id, len(data), data, block.count, number, request_id)
        else:
            command = wire.ConditionalBlockEnd(self._writer_id, number, self._expected_offset, data, request_id)
        flow.send(command)

    def _complete(self, last_event_number: int, offset: int | None = None) -> bool:
        """Acknowledges the blocks up to this number. Returns whether there were any.

        `offset` is the length of the segment after the last of these blocks, None if it is not known.
        """
        stored = [block for block in self.in_flight if block.last_number <= last_event_number]
        following = self.in_flight[len(stored)] if len(stored) < len(self.in_flight) else None
        is_inside = following is not None and following.last_number - following.count < last_event_number
        if is_inside or last_event_number > self._last_number:
            # Before a block leaves those in flight, which fail with this error.
            raise CorruptError(
                f"segment {self.segment_name} has stored the events of this writer up to {last_event_number}, which is "
                "not the last event of a block: the append was not atomic",
                details={"segment": self.segment_name, "event_number": last_event_number},
            )
        if stored:
            for _ in stored:
                self.in_flight.popleft()
            self.acknowledged_offset = offset
            if self._expected_offset is not None:
                self._expected_offset += sum(block.size_bytes for block in stored)
            self._backoff.progress()
            self._accumulator.complete(stored)
        return bool(stored)

    # FlowListener

    @property
    def is_waiting(self) -> bool:
        return bool(self.in_flight) or self._setup.is_waiting

    def replied(self, reply: wire.WireCommand) -> None:
        if isinstance(reply, wire.DataAppended):
            if self._ended is None or self._ended.done():
                return  # a late reply; the next set-up returns the same number
            try:
                offset = reply.current_segment_write_offset
                if self._complete(reply.event_number, offset if offset >= 0 else None):
                    self._send(acknowledged=True)
            except HeadraceError as error:
                self._ended.set_exception(error)
        elif self._ended is None:
            self._setup.replied(reply)
        elif not self._ended.done():
            self._ended.set_result(reply)

    def lost(self, problem: HeadraceError) -> None:
        self._setup.lost(problem)
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(problem)

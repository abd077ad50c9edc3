"""Appends the blocks of one segment: pipelined, numbered, resumed after every kind of interruption.

Exactly once: the writer id and the event numbers are the appender's own. After a reconnect the store says which number
it has stored last; blocks up to it are done, the rest is sent again with the same numbers. A segment that is sealed is
asked once more for that number before what is left goes to its successors. A store forgets writers that were away for
very long: with nothing in flight the appender starts over as a new writer, else what is in flight fails.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace import wire
from headrace.client.back_off import BackOff
from headrace.client.connections import (
    Flow,
    SegmentConnections,
    SingleReply,
    WireConnection,
    answer_within,
    give_up,
    problem_of,
)
from headrace.client.event_blocks import Block, SegmentQueue, Wants
from headrace.client.event_packer import EventPacker
from headrace.client.large_events import append_large
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.limits import WRITER_KEPT_S_MIN

BLOCKS_IN_FLIGHT = 4
"""Blocks of one segment sent and not yet acknowledged: enough to keep the store's group commit busy."""

APPEND_TIMEOUT_S = 30.0
"""A store that neither acknowledges nor refuses an append for so long is asked anew, over another connection."""

WRITER_ID_BITS = 128

_GONE = (SealedError, NotFoundError)


class AppendOwner(Protocol):
    """The writer, as its appenders see it."""

    async def segment_replaced(self, appender: SegmentAppender) -> None:
        """The segment takes no more events: moves what is left to its successors, or raises why there are none."""
        ...

    def segment_failed(self, appender: SegmentAppender, error: HeadraceError) -> None:
        """Nothing more will be acknowledged by this segment."""
        ...


class SegmentAppender:
    """The appender of one segment. Lives on the event loop; `pump` says that there is something to do."""

    def __init__(
        self,
        owner: AppendOwner,
        connections: SegmentConnections,
        packer: EventPacker,
        *,
        segment_id: int,
        segment_name: str,
        writer_id: int,
        new_back_off: Callable[[], BackOff],
        wake: Callable[[Callable[[], None]], object],
    ) -> None:
        """`wake(pump)` schedules the call on the event loop from any thread."""
        self.segment_id = segment_id
        self.segment_name = segment_name
        self.in_flight: deque[Block] = deque()
        self.acknowledged_offset: int | None = 0
        """Behind the last event acknowledged, in bytes; 0 before the first one, None where the store did not say."""
        self.queue: SegmentQueue = packer.new_queue(segment_id, lambda: wake(self.pump))
        self._owner = owner
        self._connections = connections
        self._packer = packer
        self._writer_id = writer_id
        self._back_off = new_back_off()
        self._setup = SingleReply()
        self._flow: Flow | None = None
        self._ended: asyncio.Future[wire.WireCommand | None] | None = None
        self._last_number = 0
        self._task: asyncio.Task[None] | None = None

    def pump(self) -> None:
        """Sends what can be sent now; connects first if need be."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._broke)
        elif self._ended is not None and not self._ended.done():  # else the next conversation sends it
            self._send()

    async def stop(self) -> None:
        """Ends the conversation; what is in flight stays undecided."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
                if problem.retry == "never":
                    raise problem
                self._connections.forget(self.segment_id)
                if self._has_work():
                    await self._back_off.wait(problem)
            self._task = None
        except HeadraceError as error:
            self._owner.segment_failed(self, error)

    def _broke(self, task: asyncio.Task[None]) -> None:
        """An error that nobody foresaw must not leave writers waiting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._owner.segment_failed(self, HeadraceError(f"appending to {self.segment_name} broke: {error!r}"))

    def _has_work(self) -> bool:
        """Whether anything is to be sent or acknowledged; if not, the next event wakes the appender."""
        return bool(self.in_flight) or self._packer.has_events(self.queue, otherwise=Wants.ANY_EVENT)

    async def _converse(self) -> HeadraceError:
        """Appends over one connection for as long as it goes well; why it ended."""
        connection = await self._connections.to_segment(self.segment_id)
        self._setup = SingleReply()
        flow = self._flow = connection.open_flow(self)
        try:
            while True:
                reply = await self._set_up(flow)
                if not isinstance(reply, wire.AppendSetup):
                    return self._unsettled(problem_of(flow, reply))
                if reply.last_event_number == wire.NO_EVENT_NUMBER and self._last_number:
                    self._check_undecided()
                    if not self.in_flight:
                        self._start_over()
                        continue
                self._resume(flow, reply.last_event_number)
                self._ended = asyncio.get_running_loop().create_future()
                self._send()
                ended = await self._until_ended(flow, self._ended)
                self._ended = None
                problem = await self._append_large(connection) if ended is None else problem_of(flow, ended)
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
            flow.close()

    async def _set_up(self, flow: Flow) -> wire.WireCommand:
        request = wire.SetupAppend(flow.next_id(), self._writer_id, self.segment_name)
        return await answer_within(flow, self._setup.ask(flow, request), APPEND_TIMEOUT_S)

    def _unsettled(self, problem: HeadraceError) -> HeadraceError:
        """Why a set-up was refused. What is in flight may be stored: it goes to no successor until a set-up tells."""
        if isinstance(problem, SealedError) and self.in_flight:
            return UnavailableError(
                f"sealed segment {self.segment_name} does not tell which events in flight it has",
                details={"segment": self.segment_name},
            )
        return problem

    async def _append_large(self, connection: WireConnection) -> SealedError | None:
        """The large event that is first in flight; why it did not work out, if the segment was sealed.

        It is not this connection's writer that appends it, so the writer is set up again behind it.
        """
        block = self.in_flight[0]
        try:
            await append_large(connection, block, self.segment_name, self._writer_id)
        except SealedError as error:
            return error
        self._complete(block.last_number)
        return None

    async def _until_ended(self, flow: Flow, ended: asyncio.Future[wire.WireCommand | None]) -> wire.WireCommand | None:
        """What ended the appending, None if a large event is next; raises UnavailableError if the store fell silent."""
        while True:
            oldest = self.in_flight[0] if self.in_flight else None
            await asyncio.wait({ended}, timeout=APPEND_TIMEOUT_S)
            if ended.done():
                return ended.result()
            if oldest is not None and self.in_flight and self.in_flight[0] is oldest:
                raise give_up(flow, APPEND_TIMEOUT_S)

    def _check_undecided(self) -> None:
        """Raise if the store may have known the writer, and have forgotten it, since a block in flight was sent."""
        if self.in_flight and time.time() - self.in_flight[0].sent_at_s >= WRITER_KEPT_S_MIN:
            raise IllegalStateError(
                f"events in flight to segment {self.segment_name} were sent more than {WRITER_KEPT_S_MIN:g} s ago: the "
                "store need not know any more whether it has them; read the stream to learn it, and make a new writer",
                details={"segment": self.segment_name},
                code=wire.WRITER_FORGOTTEN,
            )

    def _start_over(self) -> None:
        """Be a new writer to a store that does not know this one: nothing is in flight, so nothing can be doubled."""
        self._writer_id = secrets.randbits(WRITER_ID_BITS)
        self._last_number = 0

    def _resume(self, flow: Flow, last_event_number: int) -> None:
        """What the store has is done, the rest is sent again."""
        self._complete(last_event_number)
        for block in self.in_flight:
            if not block.is_large:
                self._send_block(flow, block)

    def _send(self, *, acknowledged: bool = False) -> None:
        """Sends at once if nothing is in flight; else full blocks, and after an acknowledgement what has gathered.

        A large event waits until all before it is acknowledged, and everything behind it waits for it.
        """
        flow = self._flow
        assert flow is not None, "only called in a conversation"
        while (count := len(self.in_flight)) < BLOCKS_IN_FLIGHT and not (count and self.in_flight[-1].is_large):
            otherwise = Wants.FULL_BLOCK if count else Wants.ANY_EVENT
            block = self._packer.take(self.queue, open_too=acknowledged or not count, otherwise=otherwise)
            if block is None:
                break
            acknowledged = False
            self._last_number += len(block.keys)
            block.last_number = self._last_number
            block.sent_at_s = time.time()
            self.in_flight.append(block)
            if not block.is_large:
                self._send_block(flow, block)
        if self.in_flight and self.in_flight[0].is_large and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _send_block(self, flow: Flow, block: Block) -> None:
        data = block.seal()
        flow.send(
            wire.AppendBlockEnd(self._writer_id, len(data), data, len(block.keys), block.last_number, flow.next_id())
        )

    def _complete(self, last_event_number: int, offset: int | None = None) -> bool:
        """Settles the blocks up to this number, which end before `offset` if that is known; whether there were any."""
        done: list[Block] = []
        while self.in_flight and self.in_flight[0].last_number <= last_event_number:
            done.append(self.in_flight.popleft())
        first_number = self.in_flight[0].last_number - len(self.in_flight[0].keys) if self.in_flight else None
        inside = first_number is not None and first_number < last_event_number
        if inside or last_event_number > self._last_number:
            raise CorruptError(
                f"segment {self.segment_name} says that event {last_event_number} of this writer is stored, which ends "
                "no block that it sent: appends are not atomic there",
                details={"segment": self.segment_name, "event_number": last_event_number},
            )
        if done:
            self.acknowledged_offset = offset
            self._back_off.progress()
            self._packer.complete(done)
        return bool(done)

    # FlowListener

    def replied(self, reply: wire.WireCommand) -> None:
        if isinstance(reply, wire.DataAppended):
            if self._ended is None or self._ended.done():
                return  # a late one; the next set-up tells the same
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

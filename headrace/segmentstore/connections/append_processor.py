"""Appends of one connection: writers, blocks, conditions, acknowledgements in order.

A writer's state on a connection starts with SetupAppend and ends with its first rejected append. Later appends are
dropped, since the writer must set up again and learn which events were stored. If the store needs delegation tokens,
the state ends with the token of the SetupAppend in the same way. Event numbers are checked against the
state of this connection, and in the container against the state of the segment. So two connections of one writer
never both append the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace import wire
from headrace.model.errors import FencedError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.segment_attributes import is_core
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.connections.append_frames import AppendFrame
from headrace.segmentstore.connections.connection_limits import (
    EMPTY_EVENTS_MAX,
    WAITING_SET_UPS_MAX,
    WRITERS_PER_CONNECTION_MAX,
)
from headrace.segmentstore.connections.token_checks import TokenHold
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment

if TYPE_CHECKING:
    from headrace.segmentstore.connections.session import Session
    from headrace.wire import Buffer


@dataclass(slots=True, eq=False)
class WriterState:
    """One writer on one segment.

    `accepted` is the number of its last accepted event, `acknowledged` that of the last one acknowledged to the peer.
    `due` describes durable appends that are not acknowledged yet: the event number, the request id and the length of
    the segment after the last of them. The first of them was received at `due_received_s`. `due_before` are the
    acknowledgements that must be sent before `due`: a conditional append is never acknowledged together with others,
    because clients wait for the reply to each of them. `set_up_id` is the id of its SetupAppend, and `hold` calls the
    processor at the end of its token.
    """

    writer_id: int
    segment: Segment
    container: SegmentContainer
    accepted: int
    acknowledged: int
    dropped: bool = False
    due: tuple[int, int, int] | None = None
    due_is_conditional: bool = False
    due_before: list[tuple[int, int, int]] = field(default_factory=list)
    due_received_s: float = 0.0
    waiting: list[tuple[AppendFrame, Reservation]] | None = None
    """Appends that arrived after the eviction of the segment. They wait until it is in memory again."""
    set_up_id: int = -1
    hold: TokenHold | None = None


class AppendProcessor:
    """The appends of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pool = session.store.pool
        self._writers: dict[int, WriterState] = {}
        self._due: list[WriterState] = []
        self._setting_up: dict[int, wire.SetupAppend] = {}
        self._waiting_set_ups = 0
        self._without_segment: set[WriterState] = set()

    def handlers(self) -> dict[type[wire.WireCommand], Callable[[Any], None]]:
        return {wire.SetupAppend: self._set_up, wire.Padding: _ignore}

    def containers(self) -> set[SegmentContainer]:
        """The containers of the writers that are set up."""
        return {writer.container for writer in self._writers.values()}

    def close(self) -> None:
        for writer in self._without_segment:
            self._release_waiting(writer)
        self._without_segment.clear()
        self._setting_up.clear()
        for writer_id in list(self._writers):
            self._forget(writer_id)
        self._due.clear()

    def collect_acknowledgements(self) -> list[Buffer]:
        """Acknowledge the durable appends: one DataAppended for each writer, which covers all its due appends.

        Each conditional append has a DataAppended of its own.
        """
        due, self._due = self._due, []
        parts: list[Buffer] = []
        if not due:
            return parts
        now_s, latency = self._session.store.clock.monotonic_s(), self._session.store.metrics.append_seconds
        for writer in due:
            if writer.due is not None:
                latency.record(now_s - writer.due_received_s)
                for acknowledgement in writer.due_before:
                    parts.append(_acknowledge(writer, acknowledgement))
                writer.due_before.clear()
                parts.append(_acknowledge(writer, writer.due))
                writer.due = None
        return parts

    # Set-up

    def _set_up(self, command: wire.SetupAppend) -> None:
        session = self._session
        if is_core(command.writer_id):
            raise wire.WireFormatError(f"writer id {command.writer_id:032x} is reserved for an attribute of the store")
        container = self._served_container(command.segment)
        if container is None and not (session.store.is_moving(command.segment) and self._may_wait):
            session.send(wire.WrongHost(command.request_id, command.segment))
            return
        writers = len(self._writers) + len(self._setting_up)
        if writers >= WRITERS_PER_CONNECTION_MAX and command.writer_id not in self._writers:
            raise InvalidRequestError(f"more than {WRITERS_PER_CONNECTION_MAX} writers on one connection")
        self._setting_up.pop(command.writer_id, None)  # the newest set-up of a writer replaces earlier ones
        if container is not None:
            segment = container.metadata.segments.get(command.segment)
            if segment is not None or not container.metadata.may_be_evicted(command.segment):
                self._answer_set_up(command, container, segment)
                return
        else:
            self._waiting_set_ups += 1
        self._forget(command.writer_id)
        self._setting_up[command.writer_id] = command
        session.run(self._set_up_later(command, container))

    def _served_container(self, segment_name: str) -> SegmentContainer | None:
        try:
            container = self._session.store.owner_of(segment_name).container
        except FencedError:
            return None
        return container if container.failure is None else None

    @property
    def _may_wait(self) -> bool:
        """Whether one more set-up of this connection may wait for a moving container."""
        return self._waiting_set_ups < WAITING_SET_UPS_MAX

    async def _set_up_later(self, command: wire.SetupAppend, container: SegmentContainer | None) -> None:
        """Answer a set-up when its container has moved, or its segment is in memory again."""
        try:
            container = container or await self._settled_container(command.segment)
            segment = await container.find(command.segment)
        except HeadraceError:
            self._session.send(wire.WrongHost(command.request_id, command.segment))
            return
        finally:
            newest = self._setting_up.get(command.writer_id) is command
            if newest:
                del self._setting_up[command.writer_id]
        tokens = self._session.tokens  # its token may have ended meanwhile
        if newest and (tokens is None or tokens.admits(command)):
            self._answer_set_up(command, container, segment)

    async def _settled_container(self, segment_name: str) -> SegmentContainer:
        try:
            return (await self._session.store.settled_owner_of(segment_name)).container
        finally:
            self._waiting_set_ups -= 1

    def _answer_set_up(self, command: wire.SetupAppend, container: SegmentContainer, segment: Segment | None) -> None:
        session = self._session
        if segment is None:
            self._reply_to_set_up(command, container, wire.NoSuchSegment(command.request_id, command.segment))
            return
        if segment.is_table:
            session.send(wire.OperationUnsupported(command.request_id, "SetupAppend on a table"))
            return
        segment.used_s = session.store.clock.monotonic_s()
        last = segment.attribute(command.writer_id)
        container.writers.connect(segment.name, command.writer_id)
        self._forget(command.writer_id)
        writer = WriterState(command.writer_id, segment, container, last, last, set_up_id=command.request_id)
        self._writers[command.writer_id] = writer
        if session.tokens is not None:
            writer.hold = session.tokens.hold(command.delegation_token, lambda: self._token_ended(writer))
        reply = wire.AppendSetup(command.request_id, command.segment, command.writer_id, last)
        self._reply_to_set_up(command, container, reply)

    def _reply_to_set_up(self, command: wire.SetupAppend, container: SegmentContainer, reply: wire.WireCommand) -> None:
        """Send the reply when what it tells is durable. If the log fails before, the writer looks up the owner."""
        send, wrong_host = self._session.send, wire.WrongHost(command.request_id, command.segment)
        container.log.when_durable(lambda: send(reply), lambda: send(wrong_host))

    def _forget(self, writer_id: int) -> None:
        """Remove the state of a writer, which must set up again before its next append."""
        writer = self._writers.pop(writer_id, None)
        if writer is not None:
            writer.container.writers.disconnect(writer.segment.name, writer_id)
            if writer.hold is not None and self._session.tokens is not None:
                self._session.tokens.release(writer.hold)
                writer.hold = None

    # The end of a token

    def _token_ended(self, writer: WriterState) -> None:
        """Accept no more appends of a writer, and tell it after the acknowledgements of all appends before.

        Its next appends may be on their way. They are dropped, as after a rejected append.
        """
        writer.hold = None
        if not writer.dropped:
            writer.dropped = True
            # Also if the log fails: then nothing waits, or the appends that wait have ended the connection.
            tell = partial(self._tell_token_ended, writer)
            writer.container.log.when_durable(tell, tell)

    def _tell_token_ended(self, writer: WriterState) -> None:
        session = self._session
        if session.closed or self._writers.get(writer.writer_id) is not writer:  # it has set up again meanwhile
            return
        if session.tokens is not None and session.tokens.replies_to_writers:
            session.send(wire.AuthTokenCheckFailed(writer.set_up_id, "", wire.TOKEN_EXPIRED))
        else:
            session.close()

    # Appends

    def check(self, frame: AppendFrame, block: AppendFrame | None) -> None:
        """Raise WireFormatError if this append is not allowed now. `block` is an AppendBlock whose end is expected."""
        if frame.writer_id not in self._writers:
            raise wire.WireFormatError(f"an append of writer {frame.writer_id:032x}, which was not set up")
        if block is None:
            return
        if frame.type_code != wire.AppendBlockEnd.TYPE or frame.writer_id != block.writer_id:
            raise wire.WireFormatError("an append between an AppendBlock and its AppendBlockEnd")
        if not 0 <= frame.whole_events_bytes <= block.data_bytes:
            raise wire.WireFormatError(
                f"AppendBlockEnd claims {frame.whole_events_bytes} bytes of whole events in a block of "
                f"{block.data_bytes}"
            )

    def accept(self, frame: AppendFrame) -> None:
        """Accept an append whose data is in the cache. The processor takes ownership of the data."""
        data = frame.data
        if data is None:
            raise AssertionError("an append was accepted without its data")
        try:
            if not 0 < frame.event_count <= data.length + EMPTY_EVENTS_MAX:
                raise wire.WireFormatError(f"an append of {frame.event_count} events in {data.length} bytes")
            self._append(self._writers[frame.writer_id], frame, data)
        except HeadraceError:
            self._pool.release(data)
            raise

    def _append(self, writer: WriterState, frame: AppendFrame, data: Reservation) -> None:
        if writer.dropped:
            self._pool.release(data)
            return
        if frame.event_number <= writer.accepted:
            raise wire.WireFormatError(
                f"writer {writer.writer_id:032x} sent event {frame.event_number} after event {writer.accepted}"
            )
        pending = _PendingAcknowledgement(self, writer, frame, self._session.received_s)
        try:
            pending.end = writer.container.append(
                writer.segment,
                writer.writer_id,
                writer.accepted,
                frame.event_number,
                frame.event_count,
                data,
                pending,
                expected_offset=frame.expected_offset,
            )
        except HeadraceError as error:
            if writer.segment.accepted.evicted:
                self._wait_for_segment(writer, frame, data)
                return
            self._pool.release(data)
            self._refuse(writer, frame, error)
            return
        writer.accepted = frame.event_number
        metrics, watched = writer.container.metrics, writer.segment.watched
        metrics.appends += 1
        metrics.append_bytes += pending.length
        metrics.append_events += frame.event_count
        if watched is not None:
            watched.record(pending.length, frame.event_count)
        self._session.count_outstanding(pending.length)

    def appended(self, pending: _PendingAcknowledgement, error: HeadraceError | None) -> None:
        """The log has an append, or has failed."""
        session, writer = self._session, pending.writer
        if session.closed:
            return
        if error is not None:
            session.abort()  # the outcome is unknown: only a recovery can tell
            return
        session.count_outstanding(-pending.length)
        if writer.due is None:
            self._due.append(writer)
            writer.due_received_s = pending.received_s
        elif pending.is_conditional or writer.due_is_conditional:
            writer.due_before.append(writer.due)
        writer.due = (pending.event_number, pending.request_id, pending.end)
        writer.due_is_conditional = pending.is_conditional
        session.schedule_flush()

    def _wait_for_segment(self, writer: WriterState, frame: AppendFrame, data: Reservation) -> None:
        """Keep an append, in order, until its segment is loaded again: it was evicted after the writer's set-up."""
        self._session.count_outstanding(data.length)
        if writer.waiting is not None:
            writer.waiting.append((frame, data))
            return
        writer.waiting = [(frame, data)]
        self._without_segment.add(writer)
        self._session.run(self._load_segment(writer))

    async def _load_segment(self, writer: WriterState) -> None:
        session, name = self._session, writer.segment.name
        error: HeadraceError = NotFoundError(f"segment {name} was removed", code="segment_not_found")
        segment = None
        try:
            segment = await writer.container.find(name)
        except HeadraceError as problem:
            error = problem
        self._without_segment.discard(writer)
        waiting, writer.waiting = writer.waiting or [], None
        session.count_outstanding(-sum(data.length for _, data in waiting))
        if segment is None:
            for _, data in waiting:
                self._pool.release(data)
            self._refuse(writer, waiting[0][0], error)
            return
        writer.segment = segment
        for frame, data in waiting:
            self._append_late(writer, frame, data)

    def _append_late(self, writer: WriterState, frame: AppendFrame, data: Reservation) -> None:
        if self._session.closed:
            self._pool.release(data)
            return
        try:
            self._append(writer, frame, data)
        except HeadraceError:  # the event numbers are out of order, which closes the connection as in `accept`
            self._pool.release(data)
            self._session.close()

    def _release_waiting(self, writer: WriterState) -> None:
        waiting, writer.waiting = writer.waiting or [], None
        for _, data in waiting:
            self._pool.release(data)

    def _refuse(self, writer: WriterState, frame: AppendFrame, error: HeadraceError) -> None:
        """Send the reason why an append is rejected, after the acknowledgements of all appends before it."""
        refused = wire.Refused(
            frame.request_id, writer.segment.name, writer_id=writer.writer_id, event_number=frame.event_number
        )
        reply = wire.reply_of_error(error, refused)
        if isinstance(reply, wire.WrongHost):
            writer.dropped = True
            self._send_refusal(reply, closes=True)
            return
        if not isinstance(reply, wire.ConditionalCheckFailed):
            writer.dropped = True
        closes = not isinstance(reply, _HANDLED_BY_WRITERS)
        # Without a durable log the outcome is unknown, as in `appended`.
        writer.container.log.when_durable(lambda: self._send_refusal(reply, closes=closes), self._session.abort)

    def _send_refusal(self, reply: wire.WireCommand, *, closes: bool) -> None:
        """Send the reply. Writers handle few of the replies, so the connection must be closed after any other one."""
        self._session.send(reply)
        if closes:
            self._session.close()


_HANDLED_BY_WRITERS: Final = (wire.ConditionalCheckFailed, wire.SegmentIsSealed, wire.NoSuchSegment)


class _PendingAcknowledgement:
    """The values that acknowledge an append. It has no reference to the data, which may be evicted."""

    __slots__ = ("end", "event_number", "is_conditional", "length", "processor", "received_s", "request_id", "writer")

    def __init__(self, processor: AppendProcessor, writer: WriterState, frame: AppendFrame, received_s: float) -> None:
        self.processor = processor
        self.writer = writer
        self.event_number = frame.event_number
        self.request_id = frame.request_id
        self.is_conditional = frame.expected_offset is not None
        self.length = 0 if frame.data is None else frame.data.length
        self.received_s = received_s
        self.end = 0

    def __call__(self, error: HeadraceError | None) -> None:
        self.processor.appended(self, error)


def _acknowledge(writer: WriterState, acknowledgement: tuple[int, int, int]) -> Buffer:
    event_number, request_id, length = acknowledgement
    previous, writer.acknowledged = writer.acknowledged, event_number
    return wire.encode_data_appended(writer.writer_id, event_number, previous, request_id, length)


def _ignore(_command: wire.WireCommand) -> None:
    """Ignore padding outside of a block."""

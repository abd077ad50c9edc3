"""What the stores of a random client program answer: appends, reads, large events, and refusals of all kinds.

As a segment store does, a session keeps the last event number of each writer that is set up, and drops the appends of a
writer after it has refused one. Replies of one connection come in their order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fuzz.checker import WrongStateError
from fuzz.client_network import ClientNetwork, MemoryTransport
from fuzz.client_streams import StoredSegment, StoredStream
from fuzz.client_tokens import TokenBook
from fuzz.program_trace import Trace
from headrace import wire
from headrace.codec.events import split_events
from headrace.model.errors import ConflictError
from headrace.model.names import transient_segment_name

HELD_S: Final = 2.0
"""How long a read waits for new bytes."""

_NUMBER_BITS: Final = 128
_CUT_OFF_BYTES_MAX: Final = 200
_CLOSED_AFTER_WRONG_HOST_SHARE: Final = 0.3
_SHOWN_FIELDS: Final = (
    "request_id", "segment", "target", "source", "writer_id", "last_event_number", "event_number", "offset",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class _Writer:
    """A writer that is set up on a connection. It is dropped with the first append that is refused."""

    segment: StoredSegment
    set_up_id: int
    token: str
    accepted: int
    is_dropped: bool = False
    due: wire.DataAppended | None = None
    """An acknowledgement that the next one may replace."""


class StoreSide:
    """All stores, with the streams that they serve. Breaks of the protocol are passed to `report`."""

    def __init__(
        self, streams: dict[str, StoredStream], tokens: TokenBook, trace: Trace, report: Callable[[str], None]
    ) -> None:
        self.happened: Counter[str] = Counter()
        self.streams = streams
        self.tokens = tokens
        self.trace = trace
        self.report = report
        self.wrong_host_share = 0.0
        self.late_ack_share = 0.0
        self.network: ClientNetwork | None = None

    def accept(self, transport: MemoryTransport) -> ClientSession:
        assert self.network is not None, "set before the first connection"
        return ClientSession(self, self.network, transport)

    def find(self, name: str) -> StoredSegment | None:
        for stream in self.streams.values():
            if (found := stream.by_name.get(name)) is not None:
                return found
        return None

    def stream_of(self, segment: StoredSegment) -> StoredStream:
        return next(stream for stream in self.streams.values() if stream.by_name.get(segment.name) is segment)


class ClientSession:
    """One connection, as its store sees it."""

    def __init__(self, stores: StoreSide, network: ClientNetwork, transport: MemoryTransport) -> None:
        self.writers: dict[int, _Writer] = {}
        self._stores = stores
        self._network = network
        self._random = network.random
        self._transport = transport
        self._place = transport.store.number
        self._transient: list[StoredSegment] = []
        self._reads: dict[Callable[[], None], StoredSegment] = {}
        self._handlers: dict[type[wire.WireCommand], Callable[[Any], wire.WireCommand | None]] = {
            wire.Hello: lambda _: wire.OWN_HELLO,
            wire.KeepAlive: lambda command: command,
            wire.SetupAppend: self._set_up,
            wire.AppendBlockEnd: self._append,
            wire.ConditionalBlockEnd: self._append,
            wire.CreateTransientSegment: self._create_transient,
            wire.MergeSegments: self._merge,
            wire.ReadSegment: self._read,
            wire.LocateOffset: self._locate,
            wire.GetStreamSegmentInfo: self._tell_info,
        }

    # StoreSession

    def received(self, command: wire.WireCommand) -> None:
        faults = self._network.faults
        is_hurt = not faults.is_calm and not isinstance(command, wire.Hello | wire.KeepAlive)
        self._note("<", command)
        if is_hurt and self._random.random() < faults.reset_share:
            self._stores.happened["resets"] += 1
            self._transport.reset(drops_requests=True)  # also what comes behind this one
            return
        reply = self._refusal(command) or self._handlers[type(command)](command)
        if reply is None:
            return
        if is_hurt and self._random.random() < faults.lost_share:
            self._stores.happened["lost replies"] += 1
            self._transport.reset(drops_requests=True)
            return
        self._send(reply)
        if is_hurt and self._random.random() < self._closing_share(reply):
            self._transport.end()

    def _closing_share(self, reply: wire.WireCommand) -> float:
        """How often the store closes the connection behind a reply."""
        if isinstance(reply, wire.WrongHost):
            return _CLOSED_AFTER_WRONG_HOST_SHARE
        return self._network.faults.reset_share if isinstance(reply, wire.AppendSetup) else 0.0

    def disconnected(self) -> None:
        for look, segment in list(self._reads.items()):
            self._forget_read(look, segment)
        for segment in self._transient:
            if not segment.is_deleted:
                self._stores.stream_of(segment).remove(segment)
        self._transient.clear()
        self.writers.clear()

    def end_token(self, writer_id: int) -> None:
        """Refuse a writer's further appends, as at the end of its delegation token."""
        writer = self.writers[writer_id]
        if not writer.is_dropped:
            writer.is_dropped = True
            self._stores.happened["ended tokens"] += 1
            self._acknowledge(writer_id)
            self._send(wire.AuthTokenCheckFailed(writer.set_up_id, "", wire.TOKEN_EXPIRED))

    def _send(self, reply: wire.WireCommand) -> None:
        self._note(">", reply)
        self._transport.send(reply)

    def _note(self, way: str, command: wire.WireCommand) -> None:
        shown = [f"{name}={getattr(command, name)}" for name in _SHOWN_FIELDS if hasattr(command, name)]
        self._stores.trace.note(f"store {self._place} {way} {type(command).__name__} {' '.join(shown)}")

    def _refusal(self, command: Any) -> wire.WireCommand | None:
        """Refuse a request because of its token, its segment, or because another store has the segment."""
        if not hasattr(command, "delegation_token"):
            return None
        stores = self._stores
        problem = stores.tokens.problem(command.delegation_token)
        if problem is not None:
            stores.happened["refused tokens"] += 1
            return wire.AuthTokenCheckFailed(command.request_id, "", problem)
        name = getattr(command, "segment", None) or getattr(command, "target", None) or command.parent_segment
        segment = stores.find(name)
        if segment is None:
            offset = getattr(command, "offset", -1)
            return wire.NoSuchSegment(command.request_id, name, "", offset)
        is_hurt = not self._network.faults.is_calm and self._random.random() < stores.wrong_host_share
        if segment.owner != self._place or is_hurt:
            stores.happened["wrong hosts"] += 1
            return wire.WrongHost(command.request_id, name)
        return None

    # Appends

    def _set_up(self, command: wire.SetupAppend) -> wire.WireCommand:
        segment = self._found(command.segment)
        last = segment.last_number(command.writer_id)
        self._acknowledge(command.writer_id)
        self.writers[command.writer_id] = _Writer(segment, command.request_id, command.delegation_token, last)
        return wire.AppendSetup(command.request_id, command.segment, command.writer_id, last)

    def _append(self, command: wire.AppendBlockEnd | wire.ConditionalBlockEnd) -> wire.WireCommand | None:
        writer = self.writers.get(command.writer_id)
        if writer is None:
            raise self._broken(f"an append of writer {command.writer_id:032x}, which was not set up")
        is_block = isinstance(command, wire.AppendBlockEnd)
        number = command.last_event_number if isinstance(command, wire.AppendBlockEnd) else command.event_number
        segment = writer.segment
        if writer.is_dropped:
            return None
        if number <= writer.accepted:
            raise self._broken(f"event {number} of a writer comes after event {writer.accepted}")
        if isinstance(command, wire.AppendBlockEnd) and segment.name in self._event_segments():
            events = len(split_events(bytes(command.data), 0)[0])
            if events != command.num_events:
                raise self._broken(f"a block of {command.num_events} events has {events}")
        refusal = self._append_refusal(command, writer, number)
        if refusal is not None:
            self._acknowledge(command.writer_id)
            writer.is_dropped = not isinstance(refusal, wire.ConditionalCheckFailed)
            if isinstance(refusal, wire.InvalidEventNumber):
                self._send(refusal)
                self._transport.end()
                return None
            return refusal
        self._stores.happened["appends"] += 1
        before, writer.accepted = writer.accepted, number
        segment.writers[command.writer_id] = number
        if segment.parent is None:
            self._stores.stream_of(segment).append(segment, bytes(command.data))
        else:
            segment.extend(bytes(command.data))
        previous = before if writer.due is None else writer.due.previous_event_number
        writer.due = wire.DataAppended(command.writer_id, number, previous, command.request_id, len(segment.data))
        if is_block and not self._network.faults.is_calm and self._random.random() < self._stores.late_ack_share:
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._random.choice((0.0, 0.001, 0.05)), self._acknowledge_if_due, command.writer_id, writer
            )
            return None
        due, writer.due = writer.due, None
        return due

    def _append_refusal(self, command: Any, writer: _Writer, number: int) -> wire.WireCommand | None:
        segment, request_id = writer.segment, command.request_id
        if segment.is_deleted:
            return wire.NoSuchSegment(request_id, segment.name)
        if segment.owner != self._place:
            return wire.WrongHost(request_id, segment.name)
        if segment.is_sealed:
            self._stores.happened["appends to sealed segments"] += 1
            return wire.SegmentIsSealed(request_id, segment.name)
        if segment.last_number(command.writer_id) != writer.accepted:
            self._stores.happened["overtaken appends"] += 1
            refused = wire.Refused(request_id, segment.name, writer_id=command.writer_id, event_number=number)
            return wire.reply_of_error(ConflictError("another connection has appended"), refused)
        if isinstance(command, wire.ConditionalBlockEnd) and command.expected_offset != len(segment.data):
            return wire.ConditionalCheckFailed(command.writer_id, number, request_id)
        return None

    def _acknowledge_if_due(self, writer_id: int, writer: _Writer) -> None:
        if self.writers.get(writer_id) is writer:
            self._acknowledge(writer_id)

    def _acknowledge(self, writer_id: int) -> None:
        writer = self.writers.get(writer_id)
        if writer is not None and writer.due is not None:
            self._send(writer.due)
            writer.due = None

    # Large events

    def _create_transient(self, command: wire.CreateTransientSegment) -> wire.WireCommand:
        parent = self._found(command.parent_segment)
        name = transient_segment_name(parent.name, command.writer_id, self._random.getrandbits(_NUMBER_BITS))
        segment = StoredSegment(name, parent.key_range, parent=parent)
        self._stores.stream_of(parent).add(segment)
        self._transient.append(segment)
        return wire.SegmentCreated(command.request_id, name)

    def _merge(self, command: wire.MergeSegments) -> wire.WireCommand:
        target, source = self._found(command.target), self._stores.find(command.source)
        if source is None:
            return wire.NoSuchSegment(command.request_id, command.source)
        if target.is_sealed:
            return wire.SegmentIsSealed(command.request_id, command.target)
        (update,) = command.attribute_updates
        if target.last_number(update.attribute_id) != update.old_value:
            self._stores.happened["overtaken large events"] += 1
            return wire.SegmentAttributeUpdated(command.request_id, success=False)
        target.writers[update.attribute_id] = update.new_value
        stream = self._stores.stream_of(target)
        stream.append(target, bytes(source.data))
        stream.remove(source)
        self._stores.happened["large events"] += 1
        return wire.SegmentsMerged(command.request_id, command.target, command.source, len(target.data))

    # Reads

    def _read(self, command: wire.ReadSegment) -> wire.WireCommand | None:
        segment = self._found(command.segment)
        if command.offset > len(segment.data):
            raise self._broken(f"a read at {command.offset} of {len(segment.data)} bytes")
        reply = self._data(command, segment)
        if reply is None:
            self._hold(command, segment)
        return reply

    def _data(self, command: wire.ReadSegment, segment: StoredSegment) -> wire.SegmentRead | None:
        data = bytes(segment.data[command.offset : command.offset + command.suggested_length])
        if not self._network.faults.is_calm and data:
            data = data[: self._random.randrange(1, min(len(data), _CUT_OFF_BYTES_MAX) + 1)]
        is_tail = command.offset + len(data) == len(segment.data)
        if not data and not (segment.is_sealed and is_tail):
            return None
        return wire.SegmentRead(
            command.segment,
            command.offset,
            is_tail,
            segment.is_sealed and is_tail,
            data,
            command.request_id,
            segment.stored_at_us(command.offset),
        )

    def _hold(self, command: wire.ReadSegment, segment: StoredSegment) -> None:
        """Answer when there is something, or after a time."""

        def look() -> None:
            if look in self._reads and (reply := self._data(command, segment)) is not None:
                self._forget_read(look, segment)
                self._send(reply)

        def give_up() -> None:
            if look in self._reads:
                self._forget_read(look, segment)
                now = segment.stored_at_us(command.offset)
                nothing = wire.SegmentRead(command.segment, command.offset, True, False, b"", command.request_id, now)
                self._send(nothing)

        self._reads[look] = segment
        segment.readers[look] = None
        asyncio.get_running_loop().call_later(HELD_S, give_up)

    def _forget_read(self, look: Callable[[], None], segment: StoredSegment) -> None:
        self._reads.pop(look, None)
        segment.readers.pop(look, None)

    def _locate(self, command: wire.LocateOffset) -> wire.WireCommand:
        offset, ordering = self._found(command.segment).locate(command.target_offset, command.ordering_number)
        return wire.OffsetLocated(command.request_id, command.segment, offset, ordering)

    def _tell_info(self, command: wire.GetStreamSegmentInfo) -> wire.WireCommand:
        segment = self._found(command.segment)
        length = len(segment.data)
        return wire.StreamSegmentInfo(
            command.request_id,
            command.segment,
            True,
            segment.is_sealed,
            False,
            0,
            length,
            0,
            segment.stored_at_us(length),
        )

    def _found(self, name: str) -> StoredSegment:
        segment = self._stores.find(name)
        assert segment is not None, "checked before"
        return segment

    def _event_segments(self) -> dict[str, StoredSegment]:
        return self._stores.streams["events"].by_name

    def _broken(self, text: str) -> WrongStateError:
        self._stores.report(text)
        return WrongStateError(text)

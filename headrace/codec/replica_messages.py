"""The messages between the stores that hold copies of a log: big-endian, over TCP, within one deployment.

Every message begins with `type u8, flags u8, reserved u16, length u32`; `length` counts the bytes behind these eight.
A decoder raises CorruptError and nothing else; the receiver then closes the link. Counts are checked against the length
before memory is used for what they announce.

A session is one OPEN and what follows from it. Its number increases with each OPEN of a writer. OPENED, ACK, NACK and
DROP repeat it, so that a message of an earlier session is never taken for one of the current session, even if it
arrives late on another link.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from headrace.codec.log_record_header import (
    ENTRY_BYTES_MAX,
    RECORD_HEADER_BYTES,
    RecordHeader,
    check_payload,
    decode_record_header,
    encode_record_header,
)
from headrace.model.container_logs import LEDGERS_MAX, REPLICA_ID_BYTES, LedgerStart, ReplicaId
from headrace.model.errors import CorruptError

# Reads the fields of a replica message one after the other, and never beyond its end.


class Fields:
    """The bytes of a message behind its header. Each method raises CorruptError if the message is too short."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._position = 0

    def view(self, length: int) -> memoryview:
        """The next `length` bytes."""
        end = self._position + length
        if end > len(self._raw):
            raise CorruptError(f"a replica message of {len(self._raw)} bytes ends inside its fields")
        taken = self._raw[self._position : end]
        self._position = end
        return taken

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields of this layout."""
        return layout.unpack(self.view(layout.size))

    def items(self, layout: struct.Struct, count: int, count_max: int) -> list[tuple[Any, ...]]:
        """The next `count` items. Checks the count before it uses memory."""
        if count > count_max:
            raise CorruptError(f"a replica message claims {count} items, at most {count_max} are allowed")
        return list(layout.iter_unpack(self.view(count * layout.size)))

    def end(self) -> None:
        """Check that nothing follows."""
        if self._position != len(self._raw):
            raise CorruptError(f"a replica message has {len(self._raw) - self._position} bytes behind its fields")


MESSAGE_HEADER: Final = struct.Struct(">BBHI")
MESSAGE_BYTES_MAX: Final = 1_258_291
"""1.2 MiB: the largest entry with its header, and room for the largest chain."""

CONTAINERS_MAX: Final = 4096
"""Items of one ACK or PULSE. A process has some tens of containers."""

RUNS_MAX: Final = LEDGERS_MAX
ENTRIES_PER_ANSWER_MAX: Final = 4096
PROOF_BYTES: Final = 32

ACK_WANTS_TRUNCATION: Final = 1
ACK_DISK_LOW: Final = 2

NACK_FENCED: Final = 1
NACK_GAP: Final = 2
NACK_CORRUPT: Final = 3
NACK_DISK_FULL: Final = 4
NACK_PROTOCOL: Final = 5
NACK_STOPPING: Final = 6

OPENED_WHOLE: Final = 0


@dataclass(frozen=True, slots=True)
class Hello:
    TYPE: ClassVar[int] = 1
    version_low: int
    version_high: int
    cluster: bytes
    own_replica: ReplicaId
    wanted_replica: ReplicaId
    incarnation: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class HelloOk:
    TYPE: ClassVar[int] = 2
    version: int
    replica: ReplicaId
    incarnation: int
    window_bytes: int
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    TYPE: ClassVar[int] = 3
    proof: bytes


@dataclass(frozen=True, slots=True)
class Open:
    TYPE: ClassVar[int] = 4
    container: int
    session: int
    writer_epoch: int
    truncated_before: int
    ledgers: tuple[LedgerStart, ...]


class HeldRun(NamedTuple):
    """What a replica holds of one ledger: the entries from `start` to before `end`, without gaps.

    `had_end` is larger than `end` if entries from `end` on were damaged: the replica had entries up to before there.
    """

    epoch: int
    start: int
    end: int
    had_end: int


@dataclass(frozen=True, slots=True)
class Opened:
    """`acknowledged_before` is the entry behind the last one that the replica knows to be acknowledged."""

    TYPE: ClassVar[int] = 5
    container: int
    session: int
    status: int
    promise: int
    truncated_before: int
    acknowledged_before: int
    runs: tuple[HeldRun, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    TYPE: ClassVar[int] = 6
    header: RecordHeader
    payload: bytes | memoryview


class AckItem(NamedTuple):
    """`next_entry` is the entry behind the last durable one, which belongs to the ledger `epoch`."""

    container: int
    session: int
    epoch: int
    next_entry: int


@dataclass(frozen=True, slots=True)
class Ack:
    TYPE: ClassVar[int] = 7
    items: tuple[AckItem, ...]
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Nack:
    TYPE: ClassVar[int] = 8
    container: int
    session: int
    code: int
    value: int


@dataclass(frozen=True, slots=True)
class Read:
    TYPE: ClassVar[int] = 9
    request: int
    container: int
    epoch: int
    first: int
    last: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Entries:
    """The answer to READ. Each container numbers its requests, so that only both numbers together name one."""

    TYPE: ClassVar[int] = 10
    request: int
    container: int
    has_more: bool
    entries: tuple[Entry, ...]


class PulseItem(NamedTuple):
    """What the writer knows: the entry behind the last acknowledged one, and the truncation point."""

    container: int
    acknowledged_before: int
    truncated_before: int


@dataclass(frozen=True, slots=True)
class Pulse:
    TYPE: ClassVar[int] = 11
    sent_us: int
    echoed_us: int
    items: tuple[PulseItem, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    TYPE: ClassVar[int] = 12
    container: int
    session: int
    writer_epoch: int


@dataclass(frozen=True, slots=True)
class Leaving:
    TYPE: ClassVar[int] = 13


ReplicaMessage = Hello | HelloOk | Proof | Open | Opened | Entry | Ack | Nack | Read | Entries | Pulse | Drop | Leaving

_HELLO: Final = struct.Struct(">HH16s16s16sQ32s")
_HELLO_OK: Final = struct.Struct(">H16sQI32s32s")
_OPEN: Final = struct.Struct(">IIQQH")
_LEDGER: Final = struct.Struct(">QQ")
_OPENED: Final = struct.Struct(">IIBQQQH")
_RUN: Final = struct.Struct(">QQQQ")
_ACK: Final = struct.Struct(">HBB")
_ACK_ITEM: Final = struct.Struct(">IIQQ")
_NACK: Final = struct.Struct(">IIBQ")
_READ: Final = struct.Struct(">IIQQQI")
_ENTRIES: Final = struct.Struct(">IIBH")
_PULSE: Final = struct.Struct(">QQH")
_PULSE_ITEM: Final = struct.Struct(">IQQ")
_DROP: Final = struct.Struct(">IIQ")


def encode_message(message: ReplicaMessage) -> bytes:
    """The bytes of a message, with its header.

    Raises:
        CorruptError: the message is larger than a receiver accepts.
    """
    body = _body(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise CorruptError(f"a replica message of {len(body)} bytes is too large: at most {MESSAGE_BYTES_MAX}")
    return MESSAGE_HEADER.pack(message.TYPE, 0, 0, len(body)) + body


def decode_message_header(raw: memoryview) -> tuple[int, int]:
    """Type and body length of the message that begins with these eight bytes. Raises CorruptError."""
    if len(raw) < MESSAGE_HEADER.size:
        raise CorruptError("a replica message ends inside its header")
    kind, flags, reserved, length = MESSAGE_HEADER.unpack_from(raw)
    if kind not in _DECODERS or flags or reserved:
        raise CorruptError(f"a replica message has the unknown type {kind} or flags {flags}")
    if length > MESSAGE_BYTES_MAX:
        raise CorruptError(f"a replica message claims {length} bytes, at most {MESSAGE_BYTES_MAX} are allowed")
    return kind, length


def decode_message(raw: memoryview) -> ReplicaMessage:
    """The message that fills these bytes. Raises CorruptError. The payloads of entries are views of `raw`."""
    kind, length = decode_message_header(raw)
    if length != len(raw) - MESSAGE_HEADER.size:
        raise CorruptError(f"a replica message of {len(raw)} bytes claims {length} behind its header")
    fields = Fields(raw[MESSAGE_HEADER.size :])
    message = _DECODERS[kind](fields)
    fields.end()
    return message


def _body(message: ReplicaMessage) -> bytes:
    match message:
        case Hello(low, high, cluster, own, wanted, incarnation, nonce):
            return _HELLO.pack(low, high, cluster, own, wanted, incarnation, nonce)
        case HelloOk(version, replica, incarnation, window, nonce, proof):
            return _HELLO_OK.pack(version, replica, incarnation, window, nonce, proof)
        case Proof(proof):
            return proof
        case Open(container, session, writer, truncated_before, ledgers):
            head = _OPEN.pack(container, session, writer, truncated_before, len(ledgers))
            return head + b"".join(_LEDGER.pack(*ledger) for ledger in ledgers)
        case Opened(container, session, status, promise, truncated_before, acknowledged_before, runs):
            head = _OPENED.pack(container, session, status, promise, truncated_before, acknowledged_before, len(runs))
            return head + b"".join(_RUN.pack(*run) for run in runs)
        case Entry():
            return _entry_bytes(message)
        case Ack(items, flags):
            return _ACK.pack(len(items), flags, 0) + b"".join(_ACK_ITEM.pack(*item) for item in items)
        case Nack(container, session, code, value):
            return _NACK.pack(container, session, code, value)
        case Read(request, container, epoch, first, last, bytes_max):
            return _READ.pack(request, container, epoch, first, last, bytes_max)
        case Entries(request, container, has_more, entries):
            return _ENTRIES.pack(request, container, has_more, len(entries)) + b"".join(map(_entry_bytes, entries))
        case Pulse(sent, echoed, items):
            return _PULSE.pack(sent, echoed, len(items)) + b"".join(_PULSE_ITEM.pack(*item) for item in items)
        case Drop(container, session, writer):
            return _DROP.pack(container, session, writer)
        case Leaving():
            return b""


def _entry_bytes(entry: Entry) -> bytes:
    return encode_record_header(entry.header) + entry.payload


def _entry(fields: Fields) -> Entry:
    header = decode_record_header(fields.view(RECORD_HEADER_BYTES))
    payload = fields.view(header.length)
    check_payload(header, payload)
    return Entry(header, payload)


def _hello(fields: Fields) -> Hello:
    low, high, cluster, own, wanted, incarnation, nonce = fields.unpack(_HELLO)
    return Hello(low, high, cluster, ReplicaId(own), ReplicaId(wanted), incarnation, nonce)


def _hello_ok(fields: Fields) -> HelloOk:
    version, replica, incarnation, window, nonce, proof = fields.unpack(_HELLO_OK)
    return HelloOk(version, ReplicaId(replica), incarnation, window, nonce, proof)


def _open(fields: Fields) -> Open:
    container, session, writer, truncated_before, count = fields.unpack(_OPEN)
    ledgers = fields.items(_LEDGER, count, LEDGERS_MAX)
    return Open(container, session, writer, truncated_before, tuple(LedgerStart(*ledger) for ledger in ledgers))


def _opened(fields: Fields) -> Opened:
    container, session, status, promise, truncated_before, acknowledged_before, count = fields.unpack(_OPENED)
    runs = tuple(HeldRun(*item) for item in fields.items(_RUN, count, RUNS_MAX))
    if status != OPENED_WHOLE or not all(run.start <= run.end <= run.had_end for run in runs):
        raise CorruptError("an OPENED message has an unknown status or a run that ends before it begins")
    return Opened(container, session, status, promise, truncated_before, acknowledged_before, runs)


def _ack(fields: Fields) -> Ack:
    count, flags, reserved = fields.unpack(_ACK)
    if flags & ~(ACK_WANTS_TRUNCATION | ACK_DISK_LOW) or reserved:
        raise CorruptError(f"an ACK message has the unknown flags {flags} or a reserved byte {reserved}")
    return Ack(tuple(AckItem(*item) for item in fields.items(_ACK_ITEM, count, CONTAINERS_MAX)), flags)


def _nack(fields: Fields) -> Nack:
    container, session, code, value = fields.unpack(_NACK)
    if not NACK_FENCED <= code <= NACK_STOPPING:
        raise CorruptError(f"a NACK message has the unknown code {code}")
    return Nack(container, session, code, value)


def _entries(fields: Fields) -> Entries:
    request, container, more, count = fields.unpack(_ENTRIES)
    if more > 1 or count > ENTRIES_PER_ANSWER_MAX:
        raise CorruptError(f"an ENTRIES message claims {count} entries, at most {ENTRIES_PER_ANSWER_MAX} are allowed")
    return Entries(request, container, bool(more), tuple(_entry(fields) for _ in range(count)))


def _pulse(fields: Fields) -> Pulse:
    sent, echoed, count = fields.unpack(_PULSE)
    return Pulse(sent, echoed, tuple(PulseItem(*item) for item in fields.items(_PULSE_ITEM, count, CONTAINERS_MAX)))


_DECODERS: Final[dict[int, Callable[[Fields], ReplicaMessage]]] = {
    Hello.TYPE: _hello,
    HelloOk.TYPE: _hello_ok,
    Proof.TYPE: lambda fields: Proof(bytes(fields.view(PROOF_BYTES))),
    Open.TYPE: _open,
    Opened.TYPE: _opened,
    Entry.TYPE: _entry,
    Ack.TYPE: _ack,
    Nack.TYPE: _nack,
    Read.TYPE: lambda fields: Read(*fields.unpack(_READ)),
    Entries.TYPE: _entries,
    Pulse.TYPE: _pulse,
    Drop.TYPE: lambda fields: Drop(*fields.unpack(_DROP)),
    Leaving.TYPE: lambda fields: Leaving(),
}

assert MESSAGE_BYTES_MAX > ENTRY_BYTES_MAX + RECORD_HEADER_BYTES
assert _HELLO.size == 44 + 3 * REPLICA_ID_BYTES

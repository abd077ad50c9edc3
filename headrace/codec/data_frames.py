"""Operations of a segment container in its durable log, and the data frames that hold them.

An operation is a kind byte and the fields of that kind, big-endian; the bytes of an append follow its fields and are
never copied here. Operations name segments by the number that the container gave them at creation. A frame is a header
and then operations, each after its length. An operation that is larger than a frame continues in the next frames. The
ledger guards entries with checksums, so one that does not decode is corruption (or another version), never something to
skip.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.model.errors import CorruptError

# These numbers reach the disk: never change or reuse one.
_CREATE: Final = 1
_APPEND: Final = 2
_ATTRIBUTES: Final = 3
_SEAL: Final = 4
_TRUNCATE: Final = 5
_DELETE: Final = 6
_MERGE: Final = 7
_STORED: Final = 8
_DELETION_STORED: Final = 9
_CHECKPOINT: Final = 10
_EVICT: Final = 11
_ACTIVATE: Final = 12
_MERGE_BATCH: Final = 13
_FORGET_WRITERS: Final = 14

_FRAME: Final = 0xF1
"""The first byte of each frame: another layout gets another number."""

_FRAME_HEADER = struct.Struct(">BQqI")
_OPERATION_LENGTH = struct.Struct(">I")
FRAME_HEADER_BYTES: Final = _FRAME_HEADER.size
OPERATION_LENGTH_BYTES: Final = _OPERATION_LENGTH.size

_UINT64_MASK: Final = (1 << 64) - 1

_APPEND_FIELDS = struct.Struct(">BQQQQqIQ")
_FRAMED_APPEND_FIELDS = struct.Struct(">IBQQQQqIQ")
_CREATE_FIELDS = struct.Struct(">BQQHI")
_ATTRIBUTES_FIELDS = struct.Struct(">BQQI")
_ATTRIBUTE = struct.Struct(">QQq")
_SEGMENT_FIELDS = struct.Struct(">BQQ")
_TRUNCATE_FIELDS = struct.Struct(">BQQQ")
_MERGE_FIELDS = struct.Struct(">BQQQQQI")
_MERGE_BATCH_FIELDS = struct.Struct(">BI")
_STORED_FIELDS = struct.Struct(">BI")
_STORED_LENGTH = struct.Struct(">QQ")
_DELETION_STORED_FIELDS = struct.Struct(">BQ")
_EVICT_FIELDS = struct.Struct(">BQ")
_CHECKPOINT_FIELDS = struct.Struct(">BIB")
_FORGET_WRITERS_FIELDS = struct.Struct(">BQI")
_WRITER_ID = struct.Struct(">QQ")

NO_SEGMENT: Final = 0
"""Numbers of segments start at 1."""

APPEND_FIELDS_BYTES: Final = _APPEND_FIELDS.size

Attributes = Sequence[tuple[int, int]]
"""Pairs of attribute id (unsigned 128 bit) and value (signed 64 bit)."""


@dataclass(frozen=True, slots=True)
class CreateOperation:
    number: int
    name: str
    attributes: Attributes
    now_ms: int


class AppendOperation(NamedTuple):
    """`data` is at `offset` of the segment; `event_number` is the writer's last one in it."""

    number: int
    offset: int
    writer_id: int
    event_number: int
    event_count: int
    now_ms: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class AttributesOperation:
    """Sets attributes to these values; conditions were checked before."""

    number: int
    attributes: Attributes
    now_ms: int


@dataclass(frozen=True, slots=True)
class SealOperation:
    number: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class TruncateOperation:
    number: int
    offset: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class DeleteOperation:
    number: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class MergeOperation:
    """All `length` bytes of segment `source` become those of `target` from `offset` on; `source` is no more."""

    target: int
    source: int
    offset: int
    length: int
    attributes: Attributes
    now_ms: int


@dataclass(frozen=True, slots=True)
class MergeBatchOperation:
    """Merges that are applied atomically, in this order."""

    merges: tuple[MergeOperation, ...]


@dataclass(frozen=True, slots=True)
class StoredOperation:
    """Pairs of segment number and the offset up to which tier 2 has the segment. They shorten the next recovery."""

    storage_lengths: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DeletionStoredOperation:
    """The chunk directory holds nothing of the deleted segment `number` any more."""

    number: int


@dataclass(frozen=True, slots=True)
class CheckpointOperation:
    """Part `part` of a snapshot of the container's metadata; a snapshot is complete with the part that is `last`."""

    part: int
    last: bool
    snapshot: bytes | memoryview


@dataclass(frozen=True, slots=True)
class EvictOperation:
    """Segment `number` is evicted from memory: from here on only its record in the metadata store has its state.

    NO_SEGMENT: no segment is evicted yet, but records may be written from here on.
    """

    number: int


@dataclass(frozen=True, slots=True)
class ActivateOperation:
    """A segment is back, under a number that it did not have before: `state` is what
    `container_snapshots.encode_segment` makes of it."""

    state: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ForgetWritersOperation:
    """Segment `number` drops the event numbers of these writers, which have not come back for long."""

    number: int
    writer_ids: tuple[int, ...]


Operation = (
    CreateOperation
    | AppendOperation
    | AttributesOperation
    | SealOperation
    | TruncateOperation
    | DeleteOperation
    | MergeOperation
    | MergeBatchOperation
    | StoredOperation
    | DeletionStoredOperation
    | CheckpointOperation
    | EvictOperation
    | ActivateOperation
    | ForgetWritersOperation
)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """`first_sequence` is the sequence number of the first operation that begins in the frame, or of the next one if
    none does. `ordering` grows from frame to frame. The first `continued_bytes` are of the operation before."""

    first_sequence: int
    ordering: int
    continued_bytes: int


def encode_frame_header(header: FrameHeader) -> bytes:
    return _FRAME_HEADER.pack(_FRAME, header.first_sequence, header.ordering, header.continued_bytes)


def decode_frame(frame: memoryview) -> tuple[FrameHeader, memoryview]:
    """The header and what follows it.

    Raises:
        CorruptError: these bytes are no frame of a known version.
    """
    if len(frame) <= FRAME_HEADER_BYTES:
        raise CorruptError(f"a log entry of {len(frame)} bytes is not a data frame")
    mark, *fields = _FRAME_HEADER.unpack_from(frame)
    if mark != _FRAME:
        raise CorruptError(
            f"a log entry of {len(frame)} bytes begins with {mark:#04x}, a data frame with {_FRAME:#04x}: another "
            "version wrote it"
        )
    header = FrameHeader(*fields)
    if header.continued_bytes > len(frame) - FRAME_HEADER_BYTES:
        raise CorruptError(f"a data frame of {len(frame)} bytes claims to continue with {header.continued_bytes}")
    return header, frame[FRAME_HEADER_BYTES:]


def encode_operation_length(length: int) -> bytes:
    """The length field before an operation in a frame."""
    return _OPERATION_LENGTH.pack(length)


def decode_operation_length(content: memoryview, position: int) -> int:
    """The length of the operation that begins at `position`; raises CorruptError if it is cut."""
    try:
        length: int = _OPERATION_LENGTH.unpack_from(content, position)[0]
    except struct.error as error:
        raise CorruptError(f"a data frame ends with {len(content) - position} bytes that are no operation") from error
    return length


def append_fields(number: int, offset: int, writer_id: int, event_number: int, event_count: int, now_ms: int) -> bytes:
    """The kind and the fields of an append, which are followed by its data."""
    return _APPEND_FIELDS.pack(
        _APPEND, number, offset, writer_id >> 64, writer_id & _UINT64_MASK, event_number, event_count, now_ms
    )


def framed_append_fields(
    number: int, offset: int, writer_id: int, event_number: int, event_count: int, now_ms: int, data_bytes: int
) -> bytes:
    """As `append_fields`, for an append in a frame: the operation's length comes first."""
    return _FRAMED_APPEND_FIELDS.pack(
        APPEND_FIELDS_BYTES + data_bytes,
        _APPEND,
        number,
        offset,
        writer_id >> 64,
        writer_id & _UINT64_MASK,
        event_number,
        event_count,
        now_ms,
    )


def encode_operation(operation: Operation) -> list[bytes | memoryview]:
    """The operation as parts to be written one after the other; data and snapshots are not copied."""
    match operation:
        case AppendOperation(number, offset, writer_id, event_number, event_count, now_ms, data):
            return [append_fields(number, offset, writer_id, event_number, event_count, now_ms), data]
        case CreateOperation(number, name, attributes, now_ms):
            raw = name.encode()
            fields = _CREATE_FIELDS.pack(_CREATE, number, now_ms, len(raw), len(attributes))
            return [fields + raw + _encode_attributes(attributes)]
        case AttributesOperation(number, attributes, now_ms):
            fields = _ATTRIBUTES_FIELDS.pack(_ATTRIBUTES, number, now_ms, len(attributes))
            return [fields + _encode_attributes(attributes)]
        case SealOperation(number, now_ms):
            return [_SEGMENT_FIELDS.pack(_SEAL, number, now_ms)]
        case TruncateOperation(number, offset, now_ms):
            return [_TRUNCATE_FIELDS.pack(_TRUNCATE, number, offset, now_ms)]
        case DeleteOperation(number, now_ms):
            return [_SEGMENT_FIELDS.pack(_DELETE, number, now_ms)]
        case MergeOperation(target, source, offset, length, attributes, now_ms):
            fields = _MERGE_FIELDS.pack(_MERGE, target, source, offset, length, now_ms, len(attributes))
            return [fields + _encode_attributes(attributes)]
        case MergeBatchOperation(merges):
            pieces = [_MERGE_BATCH_FIELDS.pack(_MERGE_BATCH, len(merges))]
            for merge in merges:
                (raw_merge,) = encode_operation(merge)
                pieces += [_OPERATION_LENGTH.pack(len(raw_merge)), bytes(raw_merge)]
            return [b"".join(pieces)]
        case StoredOperation(storage_lengths):
            pairs = [_STORED_LENGTH.pack(number, length) for number, length in storage_lengths]
            return [b"".join([_STORED_FIELDS.pack(_STORED, len(pairs)), *pairs])]
        case DeletionStoredOperation(number):
            return [_DELETION_STORED_FIELDS.pack(_DELETION_STORED, number)]
        case CheckpointOperation(part, last, snapshot):
            return [_CHECKPOINT_FIELDS.pack(_CHECKPOINT, part, last), snapshot]
        case EvictOperation(number):
            return [_EVICT_FIELDS.pack(_EVICT, number)]
        case ActivateOperation(state):
            return [bytes([_ACTIVATE]), state]
        case ForgetWritersOperation(number, writer_ids):
            ids = [_WRITER_ID.pack(each >> 64, each & _UINT64_MASK) for each in writer_ids]
            return [b"".join([_FORGET_WRITERS_FIELDS.pack(_FORGET_WRITERS, number, len(ids)), *ids])]


def decode_operation(raw: memoryview) -> Operation:
    """The operation in these bytes; data and snapshots are views into `raw`.

    Raises:
        CorruptError: these bytes are no operation of a known kind.
    """
    try:
        if raw[0] == _APPEND:  # nearly all of them are
            _, number, offset, high, low, event_number, count, now_ms = _APPEND_FIELDS.unpack_from(raw)
            data = raw[APPEND_FIELDS_BYTES:]
            return AppendOperation(number, offset, high << 64 | low, event_number, count, now_ms, data)
        return _decode(raw)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise CorruptError(f"a logged operation of {len(raw)} bytes does not decode: {error}") from error


def _decode(frame: memoryview) -> Operation:
    """Any operation but an append."""
    match frame[0]:
        case 1:
            _, number, now_ms, name_bytes, count = _CREATE_FIELDS.unpack_from(frame)
            name_end = _CREATE_FIELDS.size + name_bytes
            name = bytes(frame[_CREATE_FIELDS.size : name_end]).decode()
            return CreateOperation(number, name, _decode_attributes(frame, name_end, count), now_ms)
        case 3:
            _, number, now_ms, count = _ATTRIBUTES_FIELDS.unpack_from(frame)
            return AttributesOperation(number, _decode_attributes(frame, _ATTRIBUTES_FIELDS.size, count), now_ms)
        case 4:
            return SealOperation(*_SEGMENT_FIELDS.unpack(frame)[1:])
        case 5:
            return TruncateOperation(*_TRUNCATE_FIELDS.unpack(frame)[1:])
        case 6:
            return DeleteOperation(*_SEGMENT_FIELDS.unpack(frame)[1:])
        case 7:
            _, target, source, offset, length, now_ms, count = _MERGE_FIELDS.unpack_from(frame)
            attributes = _decode_attributes(frame, _MERGE_FIELDS.size, count)
            return MergeOperation(target, source, offset, length, attributes, now_ms)
        case 8:
            _, count = _STORED_FIELDS.unpack_from(frame)
            _check_length(frame, _STORED_FIELDS.size + count * _STORED_LENGTH.size)
            return StoredOperation(tuple(_STORED_LENGTH.iter_unpack(frame[_STORED_FIELDS.size :])))
        case 9:
            return DeletionStoredOperation(_DELETION_STORED_FIELDS.unpack(frame)[1])
        case 10:
            _, part, last = _CHECKPOINT_FIELDS.unpack_from(frame)
            return CheckpointOperation(part, bool(last), frame[_CHECKPOINT_FIELDS.size :])
        case 11:
            return EvictOperation(_EVICT_FIELDS.unpack(frame)[1])
        case 12:
            return ActivateOperation(frame[1:])
        case 13:
            return MergeBatchOperation(_decode_merges(frame))
        case 14:
            _, number, count = _FORGET_WRITERS_FIELDS.unpack_from(frame)
            _check_length(frame, _FORGET_WRITERS_FIELDS.size + count * _WRITER_ID.size)
            halves = _WRITER_ID.iter_unpack(frame[_FORGET_WRITERS_FIELDS.size :])
            return ForgetWritersOperation(number, tuple(high << 64 | low for high, low in halves))
        case kind:
            raise CorruptError(f"a log frame has the unknown kind {kind}: was it written by a newer version?")


def _decode_merges(frame: memoryview) -> tuple[MergeOperation, ...]:
    _, count = _MERGE_BATCH_FIELDS.unpack_from(frame)
    merges: list[MergeOperation] = []
    position = _MERGE_BATCH_FIELDS.size
    while position < len(frame):
        (length,) = _OPERATION_LENGTH.unpack_from(frame, position)
        position += _OPERATION_LENGTH.size
        raw, position = frame[position : position + length], position + length
        if raw[0] != _MERGE or position > len(frame):
            raise CorruptError(f"a batch of {count} merges holds something else at {position - length}")
        merge = _decode(raw)
        if isinstance(merge, MergeOperation):
            merges.append(merge)
    if len(merges) != count:
        raise CorruptError(f"a batch of {count} merges holds {len(merges)}")
    return tuple(merges)


def _encode_attributes(attributes: Attributes) -> bytes:
    return b"".join([_ATTRIBUTE.pack(key >> 64, key & _UINT64_MASK, value) for key, value in attributes])


def _decode_attributes(frame: memoryview, position: int, count: int) -> tuple[tuple[int, int], ...]:
    _check_length(frame, position + count * _ATTRIBUTE.size)
    return tuple((high << 64 | low, value) for high, low, value in _ATTRIBUTE.iter_unpack(frame[position:]))


def _check_length(frame: memoryview, expected_bytes: int) -> None:
    if len(frame) != expected_bytes:
        raise CorruptError(f"a log frame of kind {frame[0]} has {len(frame)} bytes, expected {expected_bytes}")

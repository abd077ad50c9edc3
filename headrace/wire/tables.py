"""Commands on table segments, and their replies. Positions and lengths are in bytes of the table's segment."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Any, NamedTuple

import msgspec

from headrace.model.limits import SEGMENT_NAME_BYTES_MAX
from headrace.wire.fields import (
    I32,
    I64,
    Bool,
    Buffer,
    Data,
    ListStep,
    SegmentName,
    Sink,
    Text,
    WireCommand,
    WireFormatError,
    check_count,
    command,
    read_name,
    read_text,
)

# Keys and entries of tables within a frame.
#
# A key is `i32 total, i32 n, n bytes, i64 version` with total = n + 12, a value `i32 total, i32 n, n bytes` with total
# = n + 4, an entry a key and a value. Keys are read as `bytes`, since all that one does with them is look them up;
# values are views of the payload.

_LENGTHS = Struct(">ii")
_INT64 = Struct(">q")
_KEY_OVERHEAD_BYTES = 4 + _INT64.size
_VALUE_OVERHEAD_BYTES = 4

TABLE_LIST_ELEMENTS_MAX = 100_000
"""Keys or entries in one change or reply (ours; clients send a few hundred at once). Changes are read in slices. The
Python objects of so many elements do not outgrow their bytes by far."""

READ_KEYS_MAX = 1_000
"""Keys in one ReadTable (ours; our client sends 7 at once), which is read in one step."""

NO_VERSION = -(1 << 63)
"""Of a key in a request: unconditional, with any version or none."""

NOT_EXISTS = -1
"""Of a key in a request: only if there is no such key. In a reply: there is none."""


class TableKey(msgspec.Struct, frozen=True):
    """A key with the version that is asked for or found."""

    key: bytes
    version: int = NO_VERSION


class TableEntry(msgspec.Struct, frozen=True):
    """A key, the version that is asked for or found, and its value."""

    key: bytes
    version: int
    value: Buffer


def _read_counted(payload: memoryview, position: int, overhead_bytes: int) -> tuple[memoryview, int]:
    if len(payload) - position < _LENGTHS.size:
        raise WireFormatError(f"a frame of {len(payload)} bytes ends inside a key or value of a table")
    total, length = _LENGTHS.unpack_from(payload, position)
    position += _LENGTHS.size
    end = position + length
    if length < 0 or total != length + overhead_bytes or end + overhead_bytes - 4 > len(payload):
        raise WireFormatError(
            f"a key or value of a table claims {length} bytes of {total}, {len(payload) - position} are left"
        )
    return payload[position:end], end


def read_key(payload: memoryview, position: int) -> tuple[TableKey, int]:
    key, position = _read_counted(payload, position, _KEY_OVERHEAD_BYTES)
    return TableKey(bytes(key), _INT64.unpack_from(payload, position)[0]), position + _INT64.size


def _write_key(key: TableKey | TableEntry, sink: Sink) -> None:
    length = len(key.key)
    sink.put(_LENGTHS.pack(length + _KEY_OVERHEAD_BYTES, length) + key.key + _INT64.pack(key.version))


def read_entry(payload: memoryview, position: int) -> tuple[TableEntry, int]:
    key, position = read_key(payload, position)
    value, position = _read_counted(payload, position, _VALUE_OVERHEAD_BYTES)
    return TableEntry(key.key, key.version, value), position


def _write_entry(entry: TableEntry, sink: Sink) -> None:
    _write_key(entry, sink)
    length = len(entry.value)
    sink.put(_LENGTHS.pack(length + _VALUE_OVERHEAD_BYTES, length))
    sink.put_data(entry.value)


def _read_version(payload: memoryview, position: int) -> tuple[int, int]:
    if len(payload) - position < _INT64.size:
        raise WireFormatError(f"a frame of {len(payload)} bytes ends inside an 8-byte number")
    return _INT64.unpack_from(payload, position)[0], position + _INT64.size


def _write_version(version: int, sink: Sink) -> None:
    sink.put(_INT64.pack(version))


class _VersionsStep(ListStep):
    """As a ListStep; written at once, since an update of very many entries is answered with as many."""

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        versions = values[0]
        self.check_written(versions)
        sink.put(Struct(f">i{len(versions)}q").pack(len(versions), *versions))


KEY_BYTES_MIN = _LENGTHS.size + _INT64.size
ENTRY_BYTES_MIN = KEY_BYTES_MIN + _LENGTHS.size
"""What a key, and an entry, take in a command besides their bytes."""

ReadKeys = Annotated[tuple[TableKey, ...], ListStep(READ_KEYS_MAX, KEY_BYTES_MIN, read_key, _write_key)]
TableKeys = Annotated[tuple[TableKey, ...], ListStep(TABLE_LIST_ELEMENTS_MAX, KEY_BYTES_MIN, read_key, _write_key)]
TableEntries = Annotated[
    tuple[TableEntry, ...], ListStep(TABLE_LIST_ELEMENTS_MAX, ENTRY_BYTES_MIN, read_entry, _write_entry)
]
Versions = Annotated[
    tuple[int, ...], _VersionsStep(TABLE_LIST_ELEMENTS_MAX, _INT64.size, _read_version, _write_version)
]


NO_TABLE_OFFSET = -1
"""The value of `table_segment_offset` in an update that has no condition on the table's length."""


@command(68)
class GetTableSegmentInfo(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""


@command(69)
class TableSegmentInfo(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@command(70, optional_from="sorted_deprecated")
class CreateTableSegment(WireCommand, frozen=True):
    """If `key_length` is 0, keys may have any length. Otherwise all keys have this length, and are sorted as bytes."""

    request_id: I64
    segment: SegmentName
    delegation_token: Text = ""
    sorted_deprecated: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@command(71)
class DeleteTableSegment(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    must_be_empty: Bool
    delegation_token: Text = ""


@command(74, optional_from="table_segment_offset")
class UpdateTableEntries(WireCommand, frozen=True):
    """Updates all entries or none. Each version is a condition: NO_VERSION, NOT_EXISTS or the current version."""

    request_id: I64
    segment: SegmentName
    delegation_token: Text
    entries: TableEntries
    table_segment_offset: I64 = NO_TABLE_OFFSET


@command(75)
class TableEntriesUpdated(WireCommand, frozen=True):
    """One version per entry of the request, in its order."""

    request_id: I64
    versions: Versions


@command(76, optional_from="table_segment_offset")
class RemoveTableKeys(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    keys: TableKeys
    table_segment_offset: I64 = NO_TABLE_OFFSET


@command(77)
class TableKeysRemoved(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName


@command(78)
class ReadTable(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    keys: ReadKeys


@command(79)
class TableRead(WireCommand, frozen=True):
    """One entry per key of the request, in its order. A missing key has the version NOT_EXISTS and no value."""

    request_id: I64
    segment: SegmentName
    entries: TableEntries


@command(83, optional_from="continuation_token")
class ReadTableKeys(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    suggested_key_count: I32
    continuation_token: Data = b""
    prefix_filter: Data = b""
    from_key: Data = b""
    to_key: Data = b""


@command(84)
class TableKeysRead(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    keys: TableKeys
    continuation_token: Data


@command(85, optional_from="continuation_token")
class ReadTableEntries(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    delegation_token: Text
    suggested_entry_count: I32
    continuation_token: Data = b""
    prefix_filter: Data = b""
    from_key: Data = b""
    to_key: Data = b""


@command(86)
class TableEntriesRead(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    entries: TableEntries
    continuation_token: Data


@command(88)
class ReadTableEntriesDelta(WireCommand, frozen=True):
    """Requests the entries that were written at or after `from_position`."""

    request_id: I64
    segment: SegmentName
    delegation_token: Text
    from_position: I64
    suggested_entry_count: I32


@command(87)
class TableEntriesDeltaRead(WireCommand, frozen=True):
    """`last_position` is the position for the next request. `should_clear`: entries read before may be removed."""

    request_id: I64
    segment: SegmentName
    entries: TableEntries
    should_clear: Bool
    reached_end: Bool
    last_position: I64


@command(80, optional_from="server_stack_trace")
class TableSegmentNotEmpty(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


@command(81, optional_from="server_stack_trace")
class TableKeyDoesNotExist(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


@command(82, optional_from="server_stack_trace")
class TableKeyBadVersion(WireCommand, frozen=True):
    request_id: I64
    segment: SegmentName
    server_stack_trace: Text = ""


# Reads the changes of a table command a few at a time, because one command may fill a whole frame with them.

_REQUEST_ID = Struct(">q")
_LENGTH = Struct(">H")
_COUNT = Struct(">i")
_TABLE_OFFSET = Struct(">q")
_TEXTS_BYTES_MAX = 2 + SEGMENT_NAME_BYTES_MAX + 2 + 0xFFFF
_WINDOW_BYTES = 64 << 10

Change = tuple[bytes, int, Buffer | None]
"""A key, the version that it must have (or NO_VERSION or NOT_EXISTS), and its new value, None to remove it."""


class TablePrefix(NamedTuple):
    """The first fields of a table command with keys or entries, which say whether it may be received."""

    request_id: int
    segment: str
    delegation_token: str


def read_table_prefix(payload: memoryview, payload_bytes: int, token_bytes_max: int) -> TablePrefix | None:
    """The first fields of a payload of `payload_bytes` bytes, of which the beginning has arrived; None if too few have.

    A token of more than `token_bytes_max` bytes is read as none.

    Raises:
        WireFormatError: the bytes do not have the format of these fields.
    """
    arrived, needed = len(payload), _REQUEST_ID.size + _LENGTH.size
    if arrived >= needed:
        segment_bytes = _LENGTH.unpack_from(payload, _REQUEST_ID.size)[0]
        # The length is checked when the name is read. No more bytes of a longer name are awaited.
        needed += min(segment_bytes, SEGMENT_NAME_BYTES_MAX) + _LENGTH.size
    if arrived >= needed > _REQUEST_ID.size + _LENGTH.size:
        segment, position = read_name(payload, _REQUEST_ID.size)
        token_bytes = _LENGTH.unpack_from(payload, position)[0]
        (request_id,) = _REQUEST_ID.unpack_from(payload)
        if token_bytes > token_bytes_max:
            return TablePrefix(request_id, segment, "")
        needed += token_bytes
        if arrived >= needed:
            return TablePrefix(request_id, segment, read_text(payload, position)[0])
    if needed > payload_bytes:
        raise WireFormatError(f"a frame of {payload_bytes} bytes ends inside a field: {needed} bytes are needed")
    return None


class TableChanges:
    """The payload of an UpdateTableEntries or a RemoveTableKeys, which may be in several parts.

    It is copied window by window, so that the caller may overwrite the part that was read.
    """

    def __init__(self, type_code: int, parts: Sequence[memoryview]) -> None:
        """Read the fields before the changes. Raises WireFormatError if they do not have the format of the type."""
        self._parts = parts
        self._length = sum(map(len, parts))
        self._removes = type_code == RemoveTableKeys.TYPE
        self._window = memoryview(b"")
        self._position = 0  # in the payload, of the window
        self._used = 0  # of the window
        head = self._look(_REQUEST_ID.size + _TEXTS_BYTES_MAX + _COUNT.size)
        if len(head) < _REQUEST_ID.size:
            raise WireFormatError(f"a frame of {len(head)} bytes ends inside a field: {_REQUEST_ID.size} are needed")
        (self.request_id,) = _REQUEST_ID.unpack_from(head)
        self.segment, position = read_name(head, _REQUEST_ID.size)
        self.delegation_token, position = read_text(head, position)
        if len(head) - position < _COUNT.size:
            raise WireFormatError(f"a frame of {self._length} bytes ends inside a 4-byte number")
        (count,) = _COUNT.unpack_from(head, position)
        self._used += position + _COUNT.size
        least = KEY_BYTES_MIN if self._removes else ENTRY_BYTES_MIN
        left = self._length - self._position - self._used
        check_count(count, TABLE_LIST_ELEMENTS_MAX, left // least)
        self.left = count
        """The number of changes that were not read yet."""

    @property
    def table_segment_offset(self) -> int:
        """The field after the last change; NO_TABLE_OFFSET if it is missing. Valid when all changes were read."""
        view = self._look(_TABLE_OFFSET.size)
        return int(_TABLE_OFFSET.unpack_from(view)[0]) if len(view) >= _TABLE_OFFSET.size else NO_TABLE_OFFSET

    def read(self) -> Change:
        """Read the next change. Its value is a view of a copy of the payload.

        Raises:
            WireFormatError: the next bytes do not decode as a change.
        """
        wanted_bytes = ENTRY_BYTES_MIN
        while True:
            view = self._look(wanted_bytes)
            try:
                if self._removes:
                    key, used = read_key(view, 0)
                    change: Change = (key.key, key.version, None)
                else:
                    entry, used = read_entry(view, 0)
                    change = (entry.key, entry.version, entry.value)
            except WireFormatError:
                if len(view) >= self._length - self._position - self._used:
                    raise
                wanted_bytes = max(_WINDOW_BYTES, 2 * len(view))  # it may end behind this window
                continue
            self._used += used
            self.left -= 1
            return change

    def _look(self, wanted_bytes: int) -> memoryview:
        """The next bytes of the payload: at least `wanted_bytes`, or all that are left."""
        left = self._length - self._position - self._used
        if len(self._window) - self._used < min(wanted_bytes, left):
            self._position += self._used
            self._used = 0
            self._window = memoryview(_copied(self._parts, self._position, max(wanted_bytes, _WINDOW_BYTES)))
        return self._window[self._used :]


def _copied(parts: Sequence[memoryview], start: int, length: int) -> bytes:
    sliced: list[memoryview] = []
    for part in parts:
        if start >= len(part):
            start -= len(part)
        elif length > 0:
            sliced.append(part[start : start + length])
            length -= len(sliced[-1])
            start = 0
    return b"".join(sliced)

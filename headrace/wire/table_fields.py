"""Keys and entries of tables within a frame.

A key is `i32 total, i32 n, n bytes, i64 version` with total = n + 12, a value `i32 total, i32 n, n bytes` with
total = n + 4, an entry a key and a value. Keys are read as `bytes`, since all that one does with them is look them up;
values are views of the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Any

from headrace.wire.fields import Buffer, ListStep, Sink, WireFormatError

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


@dataclass(frozen=True, slots=True)
class TableKey:
    """A key with the version that is asked for or found."""

    key: bytes
    version: int = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableEntry:
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

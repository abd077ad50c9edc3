"""Reads the changes of a table command a few at a time, because one command may fill a whole frame with them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from headrace.model.limits import SEGMENT_NAME_BYTES_MAX
from headrace.wire.fields import Buffer, WireFormatError, check_count, read_name, read_text
from headrace.wire.table_fields import (
    ENTRY_BYTES_MIN,
    KEY_BYTES_MIN,
    TABLE_LIST_ELEMENTS_MAX,
    read_entry,
    read_key,
)
from headrace.wire.tables import NO_TABLE_OFFSET, RemoveTableKeys

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
                    found, used = read_key(view, 0)
                    change: Change = (found.key, found.version, None)
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

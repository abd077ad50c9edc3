"""A batch of updates or removals: received into the cache, made entries there, appended to its table as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.codec.table_entries import REMOVED, encode_entry
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import TABLE_KEY_BYTES_MAX, TABLE_VALUE_BYTES_MAX
from headrace.segmentstore.reading.block_pool import BlockPool
from headrace.segmentstore.reading.reservations import Reservation, slice_parts

if TYPE_CHECKING:
    from typing_extensions import Buffer

Change = tuple[bytes, int, "Buffer | None"]
"""A key, the version that it must have (or a NO_VERSION or NOT_EXISTS), and its new value, None to remove it."""


class Batch:
    """`changes` are (key, wanted version, position in the data, value length or REMOVED); `data` is None once it
    belongs to the table's segment."""

    __slots__ = ("_pool", "changes", "data", "length")

    def __init__(self, pool: BlockPool, received: Reservation, changes: Sequence[Change]) -> None:
        """Take `received` over: what the changes were read from makes room for their entries, which take less.

        Raises:
            InvalidRequestError: a key or value has a forbidden length; `received` is as it was.
        """
        self._pool = pool
        self.changes: list[tuple[bytes, int, int, int]] = []
        self.length = 0
        parts: list[Buffer] = []
        for key, version, value in changes:
            value_length = REMOVED if value is None else memoryview(value).nbytes
            _check(key, value_length)
            self.changes.append((key, version, self.length, value_length))
            entry = encode_entry(key, value)
            parts.extend(entry)
            self.length += sum(memoryview(part).nbytes for part in entry)
        if self.length > received.length:
            raise AssertionError("entries take less than the commands that carry them")
        encoded = memoryview(b"".join(parts))
        room = slice_parts(received.parts, 0, self.length)
        for part in room:
            part[:] = encoded[: len(part)]
            encoded = encoded[len(part) :]
        self.data: Reservation | None = pool.compose([(received, 0, self.length)])

    def take_data(self) -> Reservation:
        """The bytes to append; whoever takes them releases them."""
        data, self.data = self.data, None
        if data is None:
            raise AssertionError("a batch is appended once")
        return data

    def release(self) -> None:
        """Give the memory back if nobody took the data."""
        if self.data is not None:
            self._pool.release(self.data)
            self.data = None


def _check(key: bytes, value_length: int) -> None:
    if not 0 < len(key) <= TABLE_KEY_BYTES_MAX:
        raise InvalidRequestError(f"a key of a table has 1 to {TABLE_KEY_BYTES_MAX} bytes, not {len(key)}")
    if value_length > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(f"a value of a table has at most {TABLE_VALUE_BYTES_MAX} bytes, not {value_length}")

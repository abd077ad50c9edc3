"""A batch of updates or removals: received into the cache, made entries there, appended to its table as a whole."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from headrace import wire
from headrace.codec.table_entries import REMOVED, encode_entry
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import TABLE_KEY_BYTES_MAX, TABLE_VALUE_BYTES_MAX
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation, slice_parts
from headrace.segmentstore.tables.limits import SLICE_BYTES_MAX, SLICE_CHANGES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Batch:
    """Of each change its key, the version that it must have, its position in the data, and the length of its value
    (REMOVED for none). They are in columns: a batch may have very many.

    `data` is None until `read_slice` has read all of them, and once it belongs to the table's segment.
    """

    __slots__ = (
        "_changes",
        "_pool",
        "_received",
        "data",
        "expected_length",
        "keys",
        "length",
        "positions",
        "value_lengths",
        "versions",
    )

    def __init__(self, pool: BlockPool, received: Reservation, changes: wire.TableChanges) -> None:
        """Take `received` over, where `changes` are read from."""
        self._pool = pool
        self._received = received
        self._changes = changes
        self.keys: list[bytes] = []
        self.versions = array("q")
        self.positions = array("q")
        self.value_lengths = array("i")
        self.length = 0
        self.expected_length = wire.NO_TABLE_OFFSET
        self.data: Reservation | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def read_slice(self) -> bool:
        """Make entries of the next changes, in the room of those that were read; whether there are more.

        Raises:
            InvalidRequestError: a key or value has a forbidden length.
            WireFormatError: no change is there.
        """
        parts: list[Buffer] = []
        start = self.length
        for _ in range(min(self._changes.left, SLICE_CHANGES_MAX)):
            key, version, value = self._changes.read()
            value_length = REMOVED if value is None else len(value)
            _check(key, value_length)
            self.keys.append(key)
            self.versions.append(version)
            self.positions.append(self.length)
            self.value_lengths.append(value_length)
            entry = encode_entry(key, value)
            parts.extend(entry)
            self.length += sum(memoryview(part).nbytes for part in entry)
            if self.length - start >= SLICE_BYTES_MAX:
                break
        encoded = memoryview(b"".join(parts))
        for part in slice_parts(self._received.parts, start, self.length - start):
            part[:] = encoded[: len(part)]
            encoded = encoded[len(part) :]
        if len(encoded):
            raise AssertionError("entries take less than the commands that carry them")
        if self._changes.left:
            return True
        self.expected_length = self._changes.table_segment_offset
        self.data = self._pool.compose([(self._received, 0, self.length)])
        return False

    def take_data(self) -> Reservation:
        """The bytes to append; whoever takes them releases them."""
        data, self.data = self.data, None
        if data is None:
            raise AssertionError("a batch is appended once")
        return data

    def release(self) -> None:
        """Give the memory back if nobody took the data."""
        self._pool.release(self._received)
        if self.data is not None:
            self._pool.release(self.data)
            self.data = None


def _check(key: bytes, value_length: int) -> None:
    if not 0 < len(key) <= TABLE_KEY_BYTES_MAX:
        raise InvalidRequestError(f"a key of a table has 1 to {TABLE_KEY_BYTES_MAX} bytes, not {len(key)}")
    if value_length > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(f"a value of a table has at most {TABLE_VALUE_BYTES_MAX} bytes, not {value_length}")

"""A batch of updates or removals, encoded as entries in the cache and appended to its table as a whole."""

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
    """The changes of one command, in columns, because a batch may have very many.

    The columns have each change's key, the version that the key must have, the position of its entry in the data, and
    the length of its value (REMOVED for a removal). `data` is None until `read_slice` has read all changes, and again
    after `take_data`.
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
        """Take ownership of `received`, which holds the payload that `changes` reads."""
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
        """Encode the next changes as entries, over the payload bytes that were read; return whether there are more.

        Raises:
            InvalidRequestError: a key or value has a forbidden length.
            WireFormatError: the payload does not decode as a change.
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
            raise AssertionError("entries take less room than the command that carries them")
        if self._changes.left:
            return True
        self.expected_length = self._changes.table_segment_offset
        self.data = self._pool.compose([(self._received, 0, self.length)])
        return False

    def take_data(self) -> Reservation:
        """The bytes to append. The caller owns them and must release them."""
        data, self.data = self.data, None
        if data is None:
            raise AssertionError("a batch is appended only once, after all its changes were read")
        return data

    def release(self) -> None:
        """Free the memory of the batch, unless `take_data` was called."""
        self._pool.release(self._received)
        if self.data is not None:
            self._pool.release(self.data)
            self.data = None


def _check(key: bytes, value_length: int) -> None:
    if not 0 < len(key) <= TABLE_KEY_BYTES_MAX:
        raise InvalidRequestError(f"a table key must have 1 to {TABLE_KEY_BYTES_MAX} bytes, this one has {len(key)}")
    if value_length > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(
            f"a table value must have at most {TABLE_VALUE_BYTES_MAX} bytes, this one has {value_length}"
        )

"""Requests on tables: values of keys, pages in the order of keys, entries written since a position, and updates.

An update is checked against its table and appended as a whole or not at all. A large batch is handled in slices,
between which other tasks get a turn. No entry of a batch is visible before the last step, which appends the batch and
adds all its entries to the table's tail at once.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace import wire
from headrace.codec.table_entries import (
    HEADER_BYTES,
    REMOVED,
    Place,
    decode_entries,
    encode_entry,
    entry_bytes,
    value_offset,
)
from headrace.model.errors import ConflictError, CorruptError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.limits import (
    TABLE_KEY_BYTES_MAX,
    TABLE_PAGE_BYTES_MAX,
    TABLE_VALUE_BYTES_MAX,
    WIRE_FRAME_PAYLOAD_BYTES_MAX,
)
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation, slice_parts
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.tables.table import LOOK_UPS_AT_ONCE_MAX, Table, TailAddition, read_in_memory, read_segment
from headrace.segmentstore.tables.table_limits import SLICE_BYTES_MAX, SLICE_CHANGES_MAX
from headrace.wire import NO_TABLE_OFFSET, NO_VERSION, NOT_EXISTS, TableEntry

if TYPE_CHECKING:
    from typing_extensions import Buffer


VALUES_AT_ONCE_MAX: Final = 16
DELTA_READ_BYTES_MIN: Final = 64 << 10
ENTRY_BYTES_MAX: Final = HEADER_BYTES + TABLE_KEY_BYTES_MAX + TABLE_VALUE_BYTES_MAX
REPLY_ENTRY_BYTES: Final = 24
"""The bytes of a reply per entry, in addition to its key and value."""

Found = tuple[bytes, Place]


class Delta(NamedTuple):
    entries: list[TableEntry]
    should_clear: bool
    reached_end: bool
    last_position: int


async def get(table: Table, keys: Sequence[bytes]) -> list[TableEntry]:
    """One entry per key, in the order of `keys`. A key that the table does not have gets NOT_EXISTS and no value.

    Raises:
        InvalidRequestError: a key has a wrong length, or the reply does not fit into a frame.
        NotFoundError: the table was removed.
        ThrottledError, UnavailableError: tier 2 does not answer.
        CorruptError: tier 2 does not have the bytes that were written.
    """
    for key in keys:
        table.check_key(key)
    places = await table.find_all(keys)
    reply_bytes = sum(REPLY_ENTRY_BYTES + entry_bytes(key, places[key] or _NOWHERE) for key in keys)
    if reply_bytes > WIRE_FRAME_PAYLOAD_BYTES_MAX // 2:
        raise InvalidRequestError(
            f"the values of these {len(keys)} keys take {reply_bytes} bytes, the limit is "
            f"{WIRE_FRAME_PAYLOAD_BYTES_MAX // 2}: request fewer keys at once"
        )
    present = [(key, place) for key, place in places.items() if place is not None]
    entries = {entry.key: entry for entry in await _with_values(table, present)}
    return [entries.get(key) or TableEntry(key, NOT_EXISTS, b"") for key in keys]


async def page_of_keys(table: Table, first: bytes, last: bytes | None, count: int) -> list[Found]:
    """Up to `count` keys from `first` to `last`, both inclusive, in the order of their bytes. Raises as `get`."""
    page: list[Found] = []
    page_bytes = 0
    async for key, place in table.walk(first, last):
        page.append((key, place))
        page_bytes += REPLY_ENTRY_BYTES + len(key)
        if len(page) >= count or page_bytes >= TABLE_PAGE_BYTES_MAX:
            break
    return page


async def page_of_entries(table: Table, first: bytes, last: bytes | None, count: int) -> list[TableEntry]:
    """As `page_of_keys`, with values."""
    while True:
        page: list[Found] = []
        page_bytes = 0
        async for key, place in table.walk(first, last):
            page_bytes += REPLY_ENTRY_BYTES + entry_bytes(key, place)
            page.append((key, place))
            if len(page) >= count or page_bytes >= TABLE_PAGE_BYTES_MAX:
                break
        entries = await _with_values(table, page)
        if entries or not page:
            return entries
        # All keys of the page were removed meanwhile. Read on, because an empty page would mean the end of the table.
        first = page[-1][0] + b"\0"


async def delta(table: Table, from_position: int, count: int) -> Delta:
    """The entries at or after `from_position` that are the newest of their keys, in the order of writing.

    There are `count` of them, unless the page is full or the table ends before.

    Raises:
        InvalidRequestError: the position is after the end of the table, or no entry starts there.
        NotFoundError, ThrottledError, UnavailableError, CorruptError: as `get`.
    """
    while True:
        try:
            return await _delta(table, from_position, count)
        except NotFoundError:
            if table.segment.accepted.removed:
                raise
            # A compaction truncated the bytes before they were read: start again at the new start of the table.


async def _delta(table: Table, from_position: int, count: int) -> Delta:
    segment = table.segment
    start = segment.accepted.start_offset
    if not 0 <= from_position <= segment.accepted.length:
        raise InvalidRequestError(
            f"position {from_position} is outside of table {segment.name}, which has {segment.accepted.length} bytes"
        )
    position = max(from_position, start)
    should_clear = from_position < start
    entries: list[TableEntry] = []
    page_bytes, read_bytes = 0, DELTA_READ_BYTES_MIN
    while position < segment.accepted.length:
        data = await read_segment(segment, table.reader, position, min(read_bytes, segment.accepted.length - position))
        view = memoryview(data)
        try:
            decoded, used = decode_entries(view, position)
        except CorruptError as error:
            raise InvalidRequestError(
                f"no entry of table {segment.name} starts at position {from_position}: use one from an earlier reply"
            ) from error
        if not used:
            if len(data) >= min(ENTRY_BYTES_MAX, segment.accepted.length - position):
                raise InvalidRequestError(f"no entry of table {segment.name} starts at position {position}")
            read_bytes = ENTRY_BYTES_MAX
            continue
        newest: dict[bytes, Place | None] = {}
        for number, (key, place) in enumerate(decoded):
            if number % LOOK_UPS_AT_ONCE_MAX == 0:
                group = decoded[number : number + LOOK_UPS_AT_ONCE_MAX]
                newest = await table.find_all(each for each, _ in group)
            if newest[key] == place:
                value_at = value_offset(key, place) - position
                entries.append(TableEntry(key, place.version, view[value_at : value_at + place.value_length]))
                page_bytes += REPLY_ENTRY_BYTES + entry_bytes(key, place)
            if len(entries) >= count or page_bytes >= TABLE_PAGE_BYTES_MAX:
                end = place.offset + entry_bytes(key, place)
                return Delta(entries, should_clear, end >= segment.accepted.length, end)
        position += used
    return Delta(entries, should_clear, reached_end=True, last_position=position)


_NOWHERE: Final = Place(0, NOT_EXISTS, 0)


async def _with_values(table: Table, page: Sequence[Found]) -> list[TableEntry]:
    """The entries of these keys with their values, without keys that were removed since their look-up."""
    values: dict[bytes, TableEntry | None] = {}
    missing: list[Found] = []
    for key, place in page:
        value = read_in_memory(table.segment, value_offset(key, place), place.value_length)
        if value is None:
            missing.append((key, place))
        else:
            values[key] = TableEntry(key, place.version, value)
    for first in range(0, len(missing), VALUES_AT_ONCE_MAX):
        group = missing[first : first + VALUES_AT_ONCE_MAX]
        read = await asyncio.gather(*(_with_value(table, key, place) for key, place in group))
        values.update((key, entry) for (key, _), entry in zip(group, read, strict=True))
    return [entry for key, _ in page if (entry := values[key]) is not None]


async def _with_value(table: Table, key: bytes, place: Place | None) -> TableEntry | None:
    while place is not None:
        try:
            value = await read_segment(table.segment, table.reader, value_offset(key, place), place.value_length)
        except NotFoundError:
            if table.segment.accepted.removed:
                raise
            place = await table.find(key)  # a compaction has moved or dropped the entry
        else:
            return TableEntry(key, place.version, value)
    return None


# A batch of updates or removals, encoded as entries in the cache and appended to its table as a whole.


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
            _check_sizes(key, value_length)
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


def _check_sizes(key: bytes, value_length: int) -> None:
    if not 0 < len(key) <= TABLE_KEY_BYTES_MAX:
        raise InvalidRequestError(f"a table key must have 1 to {TABLE_KEY_BYTES_MAX} bytes, this one has {len(key)}")
    if value_length > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(
            f"a table value must have at most {TABLE_VALUE_BYTES_MAX} bytes, this one has {value_length}"
        )


async def update(table: Table, batch: Batch, entered: Callable[[], None]) -> tuple[int, ...]:
    """Append a batch if all its conditions hold; wait until it is durable, and return the new versions.

    `entered` is called when the batch has its place in the table. Requests that start later see the batch.

    Raises:
        ConflictError: a key is missing (code "table_key_missing") or has another version ("table_key_version"), or
            the table has another length than the batch expects ("table_offset", with `details["length"]`).
        InvalidRequestError: a key has a wrong length, or a version is invalid.
        NotFoundError, SealedError: the table was removed or is sealed.
        ThrottledError, UnavailableError, FencedError, CorruptError: as `SegmentContainer.append` and `Table.find`.
    """
    log = table.container.log
    durable: asyncio.Future[None] | None = None
    try:
        async with table.order:
            await table.room()
            changes_nothing = await _check(table, batch)
            if changes_nothing:
                table.check_current()
                base = table.segment.accepted.length
            else:
                base, addition = await _prepared(table, batch)
                durable = log.expect()
                _append(table, batch, addition, durable)
    except HeadraceError:
        if durable is not None:
            durable.cancel()
        await log.durable()  # the error depends on earlier updates, which must be durable before it is sent
        raise
    entered()
    await (durable if durable is not None else log.durable())
    return tuple(map(base.__add__, batch.positions))


async def _check(table: Table, batch: Batch) -> bool:
    """Raise unless all conditions hold; return whether the batch only removes keys that the table does not have.

    The caller holds the table's order, so no version changes between the slices.
    """
    _check_table(table, batch)
    changes_nothing = True
    for first in range(0, len(batch), SLICE_CHANGES_MAX):
        if first:
            await asyncio.sleep(0)
        changes = range(first, min(first + SLICE_CHANGES_MAX, len(batch)))
        known = await table.find_all(batch.keys[each] for each in changes if batch.versions[each] != NO_VERSION)
        for each in changes:
            _check_change(table, batch.keys[each], batch.versions[each], known)
        changes_nothing = changes_nothing and all(
            batch.value_lengths[each] < 0 and table.alive(table.peek(batch.keys[each])) is None for each in changes
        )
    return changes_nothing and not table.runs


def _check_table(table: Table, batch: Batch) -> None:
    segment = table.segment
    if segment.accepted.removed:
        raise NotFoundError(f"table {segment.name} was removed", details={"segment": segment.name})
    if batch.expected_length not in (NO_TABLE_OFFSET, segment.accepted.length):
        raise ConflictError(
            f"table {segment.name} has length {segment.accepted.length}, expected {batch.expected_length}",
            details={"length": segment.accepted.length},
            code="table_offset",
        )


def _check_change(table: Table, key: bytes, version: int, known: dict[bytes, Place | None]) -> None:
    table.check_key(key)
    if version == NO_VERSION:
        return
    if version < NOT_EXISTS:
        raise InvalidRequestError(f"{version} is not a valid version of a table key")
    name, place = table.segment.name, known[key]
    if place is None and version != NOT_EXISTS:
        raise ConflictError(
            f"table {name} has no key {key[:64]!r}, expected version {version}", code="table_key_missing"
        )
    if place is not None and version != place.version:
        raise ConflictError(
            f"key {key[:64]!r} of table {name} has version {place.version}, expected {version}",
            code="table_key_version",
        )


async def _prepared(table: Table, batch: Batch) -> tuple[int, TailAddition]:
    """The offset at which the batch will begin, and its entries as an addition to the newest tail."""
    while True:
        base, addition = table.segment.accepted.length, TailAddition(table.tails[0])
        for first in range(0, len(batch), SLICE_CHANGES_MAX):
            if first:
                await asyncio.sleep(0)
            for each in range(first, min(first + SLICE_CHANGES_MAX, len(batch))):
                offset = base + batch.positions[each]
                addition.put(batch.keys[each], Place(offset, offset, batch.value_lengths[each]))
        # Otherwise a compaction has appended meanwhile, or a new tail was started. This is rare, so try again.
        if base == table.segment.accepted.length and addition.tail is table.tails[0]:
            return base, addition


def _append(table: Table, batch: Batch, addition: TailAddition, durable: asyncio.Future[None]) -> None:
    _check_table(table, batch)  # again, because other tasks may have run since the first check
    if table.failure is not None:  # a table that was loaded again meanwhile would not have the batch
        raise table.failure
    data = batch.take_data()
    try:
        # If the log fails, it fails `durable` itself, so there is nothing to do here for an error.
        table.append(data, addition, lambda error: resolve(durable) if error is None else None)
    except HeadraceError:
        batch.data = data
        raise

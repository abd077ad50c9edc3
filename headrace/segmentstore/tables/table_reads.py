"""Reads of tables: values of keys, pages in the order of keys, and the entries written since a position."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.codec.table_entries import HEADER_BYTES, Place, decode_entries, entry_bytes, value_offset
from headrace.model.errors import CorruptError, InvalidRequestError, NotFoundError
from headrace.model.limits import (
    TABLE_KEY_BYTES_MAX,
    TABLE_PAGE_BYTES_MAX,
    TABLE_VALUE_BYTES_MAX,
    WIRE_FRAME_PAYLOAD_BYTES_MAX,
)
from headrace.segmentstore.tables.table import LOOK_UPS_AT_ONCE_MAX, Table, read_in_memory, read_segment
from headrace.wire import NOT_EXISTS, TableEntry

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
    found = [(key, place) for key, place in places.items() if place is not None]
    entries = {entry.key: entry for entry in await _with_values(table, found)}
    return [entries.get(key) or TableEntry(key, NOT_EXISTS, b"") for key in keys]


async def page_of_keys(table: Table, first: bytes, last: bytes | None, count: int) -> list[Found]:
    """Up to `count` keys from `first` to `last`, both inclusive, in the order of their bytes. Raises as `get`."""
    found: list[Found] = []
    page_bytes = 0
    async for key, place in table.walk(first, last):
        found.append((key, place))
        page_bytes += REPLY_ENTRY_BYTES + len(key)
        if len(found) >= count or page_bytes >= TABLE_PAGE_BYTES_MAX:
            break
    return found


async def page_of_entries(table: Table, first: bytes, last: bytes | None, count: int) -> list[TableEntry]:
    """As `page_of_keys`, with values."""
    while True:
        found: list[Found] = []
        page_bytes = 0
        async for key, place in table.walk(first, last):
            page_bytes += REPLY_ENTRY_BYTES + entry_bytes(key, place)
            found.append((key, place))
            if len(found) >= count or page_bytes >= TABLE_PAGE_BYTES_MAX:
                break
        entries = await _with_values(table, found)
        if entries or not found:
            return entries
        # All keys of the page were removed meanwhile. Read on, because an empty page would mean the end of the table.
        first = found[-1][0] + b"\0"


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


async def _with_values(table: Table, found: Sequence[Found]) -> list[TableEntry]:
    """The entries of these keys with their values, without keys that were removed since their look-up."""
    values: dict[bytes, TableEntry | None] = {}
    missing: list[Found] = []
    for key, place in found:
        value = read_in_memory(table.segment, value_offset(key, place), place.value_length)
        if value is None:
            missing.append((key, place))
        else:
            values[key] = TableEntry(key, place.version, value)
    for first in range(0, len(missing), VALUES_AT_ONCE_MAX):
        group = missing[first : first + VALUES_AT_ONCE_MAX]
        read = await asyncio.gather(*(_with_value(table, key, place) for key, place in group))
        values.update((key, entry) for (key, _), entry in zip(group, read, strict=True))
    return [entry for key, _ in found if (entry := values[key]) is not None]


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

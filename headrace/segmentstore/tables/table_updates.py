"""Checks a batch against its table and appends it, as a whole or not at all.

Much is done in slices, between which the event loop has a turn. Nothing of a batch is visible before its last step,
which appends it and lets the table's tail know all its entries at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.codec.table_entries import Place
from headrace.model.errors import ConflictError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.tables.batches import Batch
from headrace.segmentstore.tables.limits import SLICE_CHANGES_MAX
from headrace.segmentstore.tables.table import Table
from headrace.segmentstore.tables.tail import TailAddition
from headrace.wire import NO_TABLE_OFFSET, NO_VERSION, NOT_EXISTS


async def update(table: Table, batch: Batch, entered: Callable[[], None]) -> tuple[int, ...]:
    """Append a batch if all its conditions hold before it, and return when that is durable: the new versions.

    `entered` is called when the batch has its place: what is asked from then on comes after it.

    Raises:
        ConflictError: a key is missing (code "table_key_missing") or has another version ("table_key_version"), or
            the table has not the length that the batch expects ("table_offset", with `details["length"]`).
        InvalidRequestError: a key has a wrong length, or a version is none.
        NotFoundError, SealedError: the table is gone or takes no more.
        ThrottledError, UnavailableError, FencedError, CorruptError: as `SegmentContainer.append` and `Table.find`.
    """
    log = table.container.log
    durable: asyncio.Future[None] | None = None
    try:
        async with table.order:
            await table.room()
            changes_nothing = await _check(table, batch)
            if changes_nothing:
                base = table.segment.length
            else:
                base, addition = await _prepared(table, batch)
                durable = log.expect()
                _append(table, batch, addition, durable)
    except HeadraceError:
        if durable is not None:
            durable.cancel()
        await log.durable()  # what the answer rests on
        raise
    entered()
    await (durable if durable is not None else log.durable())
    return tuple(map(base.__add__, batch.positions))


async def _check(table: Table, batch: Batch) -> bool:
    """Raise unless all conditions hold; whether all that the batch does is to remove keys that are not there.

    Only the holder of the table's order changes versions, so what holds for a slice holds until the end.
    """
    _check_table(table, batch)
    changes_nothing = True
    for first in range(0, len(batch), SLICE_CHANGES_MAX):
        if first:
            await asyncio.sleep(0)
        changes = range(first, min(first + SLICE_CHANGES_MAX, len(batch)))
        known = await table.find_all({batch.keys[each] for each in changes if batch.versions[each] != NO_VERSION})
        for each in changes:
            _check_change(table, batch.keys[each], batch.versions[each], known)
        changes_nothing = changes_nothing and all(
            batch.value_lengths[each] < 0 and table.alive(table.peek(batch.keys[each])) is None for each in changes
        )
    return changes_nothing and not table.runs


def _check_table(table: Table, batch: Batch) -> None:
    segment = table.segment
    if segment.removed:
        raise NotFoundError(f"table {segment.name} was removed", details={"segment": segment.name})
    if batch.expected_length not in (NO_TABLE_OFFSET, segment.length):
        raise ConflictError(
            f"table {segment.name} has length {segment.length}, expected {batch.expected_length}",
            details={"length": segment.length},
            code="table_offset",
        )


def _check_change(table: Table, key: bytes, version: int, known: dict[bytes, Place | None]) -> None:
    table.check_key(key)
    if version == NO_VERSION:
        return
    if version < NOT_EXISTS:
        raise InvalidRequestError(f"{version} is no version of a key")
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
    """Where the batch will begin, and its entries as the newest tail will have them."""
    while True:
        base, addition = table.segment.length, TailAddition(table.tails[0])
        for first in range(0, len(batch), SLICE_CHANGES_MAX):
            if first:
                await asyncio.sleep(0)
            for each in range(first, min(first + SLICE_CHANGES_MAX, len(batch))):
                offset = base + batch.positions[each]
                addition.put(batch.keys[each], Place(offset, offset, batch.value_lengths[each]))
        # Else a compaction has appended meanwhile, or the tail was full: that is seldom, and ends.
        if base == table.segment.length and addition.tail is table.tails[0]:
            return base, addition


def _append(table: Table, batch: Batch, addition: TailAddition, durable: asyncio.Future[None]) -> None:
    _check_table(table, batch)  # again: time may have passed
    data = batch.take_data()
    try:
        # A failed log tells all who expect something from it.
        table.append(data, addition, lambda error: resolve(durable) if error is None else None)
    except HeadraceError:
        batch.data = data
        raise

"""Checks a batch against its table and appends it, as a whole or not at all.

A large batch is handled in slices, between which other tasks get a turn. No entry of a batch is visible before the
last step, which appends the batch and adds all its entries to the table's tail at once.
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

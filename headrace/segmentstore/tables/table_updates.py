"""Checks a batch against its table and appends it, as a whole or not at all."""

from __future__ import annotations

import asyncio

from headrace.codec.table_entries import Place
from headrace.codec.wire_commands import NO_TABLE_OFFSET, NO_VERSION, NOT_EXISTS
from headrace.model.errors import ConflictError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.tables.batches import Batch
from headrace.segmentstore.tables.table import Table


async def update(table: Table, batch: Batch, expected_length: int = NO_TABLE_OFFSET) -> tuple[int, ...]:
    """Append a batch if all its conditions hold before it, and return when that is durable: the new versions.

    Raises:
        ConflictError: a key is missing (code "table_key_missing") or has another version ("table_key_version"), or
            the table has not the length `expected_length` ("table_offset", with `details["length"]`).
        InvalidRequestError: a key has a wrong length, or a version is none.
        NotFoundError, SealedError: the table is gone or takes no more.
        ThrottledError, UnavailableError, FencedError, CorruptError: as `SegmentContainer.append` and `Table.find`.
    """
    log = table.container.log
    durable: asyncio.Future[None] | None = None
    try:
        async with table.order:
            await table.room()
            known = await table.find_all({key for key, version, _, _ in batch.changes if version != NO_VERSION})
            _check(table, batch, known, expected_length)
            base = table.segment.length
            if not _changes_nothing(table, batch):
                durable = log.expect()
                _append(table, batch, durable)
    except HeadraceError:
        if durable is not None:
            durable.cancel()
        await log.durable()  # what the answer rests on
        raise
    await (durable if durable is not None else log.durable())
    return tuple(base + position for _, _, position, _ in batch.changes)


def _check(table: Table, batch: Batch, known: dict[bytes, Place | None], expected_length: int) -> None:
    segment = table.segment
    if segment.removed:
        raise NotFoundError(f"table {segment.name} was removed", details={"segment": segment.name})
    if expected_length not in (NO_TABLE_OFFSET, segment.length):
        raise ConflictError(
            f"table {segment.name} has length {segment.length}, expected {expected_length}",
            details={"length": segment.length},
            code="table_offset",
        )
    for key, version, _, _ in batch.changes:
        table.check_key(key)
        if version == NO_VERSION:
            continue
        if version < NOT_EXISTS:
            raise InvalidRequestError(f"{version} is no version of a key")
        place = known[key]
        if place is None and version != NOT_EXISTS:
            raise ConflictError(
                f"table {segment.name} has no key {key[:64]!r}, expected version {version}", code="table_key_missing"
            )
        if place is not None and version != place.version:
            raise ConflictError(
                f"key {key[:64]!r} of table {segment.name} has version {place.version}, expected {version}",
                code="table_key_version",
            )


def _changes_nothing(table: Table, batch: Batch) -> bool:
    """Whether all that the batch does is to remove keys that are known not to be there."""
    return not table.runs and all(
        value_length < 0 and table.alive(table.peek(key)) is None for key, _, _, value_length in batch.changes
    )


def _append(table: Table, batch: Batch, durable: asyncio.Future[None]) -> None:
    base = table.segment.length
    changes = [
        (key, Place(base + position, base + position, value_length)) for key, _, position, value_length in batch.changes
    ]
    data = batch.take_data()
    try:
        # A failed log tells all who expect something from it.
        table.append(data, changes, lambda error: resolve(durable) if error is None else None)
    except HeadraceError:
        batch.data = data
        raise

"""Begins a history again after an operator accepted the loss of a log: with what the store has then.

Acknowledged requests may be gone. What is there must have been asked for, once and in order, and no writer may be told
a number behind its last block. From then on the rules of `checker` hold again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fuzz.checker import Found, WrongStateError, entries_of, observe
from fuzz.connections import Connection
from fuzz.histories import (
    Append,
    AttributeChange,
    Batch,
    History,
    Inherited,
    Merge,
    Request,
    SegmentHistory,
    TableHistory,
    Truncation,
    parse_blocks,
)
from headrace import wire

_R = TypeVar("_R", bound=Request)


async def inherit(connection: Connection, history: History, is_lost: Callable[[str], bool]) -> None:
    """Replace the histories of segments and tables whose log was lost in part; `is_lost` says it by name.

    Raises:
        WrongStateError, ContentError: the store has what was not asked for.
    """
    asked = {
        (writer.tag, append.number): append
        for segment in history.segments
        for writer in segment.writers
        for append in writer.appends
    }
    kept = [each for each in history.segments if not is_lost(each.name)]
    lost = {each.name: each for each in history.segments if is_lost(each.name) and not each.transient}
    for name, former in lost.items():
        here = await observe(connection, former)
        if here is not None:
            _check(name, here, asked)
            kept.append(_segment(name, here))
    history.segments = kept
    tables = [each for each in history.tables if not is_lost(each.name)]
    for name in {each.name: None for each in history.tables if is_lost(each.name)}:
        entries = await entries_of(connection, name)
        if entries is not None:
            tables.append(_table(name, entries))
    history.tables = tables


def _check(name: str, here: Found, asked: dict[tuple[int, int], Append]) -> None:
    seen: dict[int, int] = {}
    for tag, number, offset, end in parse_blocks(here.data, here.start):
        append = asked.get((tag, number))
        if append is None or append.stored_bytes != end - offset:
            raise WrongStateError(f"segment {name} has block {number} of writer {tag} at {offset}, never asked for")
        if number <= seen.get(tag, -1):
            raise WrongStateError(f"segment {name} has block {number} of writer {tag} at {offset} behind {seen[tag]}")
        seen[tag] = number
    for tag, told in here.numbers.items():
        if not here.start and told > seen.get(tag, wire.NO_EVENT_NUMBER):
            raise WrongStateError(f"writer {tag} is told {told}, its last block in {name} is {seen.get(tag)}")


def _segment(name: str, here: Found) -> SegmentHistory:
    segment = SegmentHistory(name, _done(Request(-1)), inherited=Inherited(here.start, here.data, here.event_count))
    segment.truncations = [_done(Truncation(-1, offset=here.start))]
    segment.merges = [_done(Merge(-1, counted=True)) for _ in range(here.merges)]
    if here.changes:
        segment.changes = [_done(AttributeChange(-1, value=here.changes))]
    if here.sealed:
        segment.seal = _done(Request(-1))
    return segment


def _table(name: str, entries: dict[bytes, wire.TableEntry]) -> TableHistory:
    batch = _done(Batch(-1))
    batch.changes = {key: bytes(entry.value) for key, entry in entries.items()}
    batch.versions = {key: entry.version for key, entry in entries.items()}
    return TableHistory(name, _done(Request(-1)), batches=[batch])


def _done(request: _R) -> _R:
    request.answer(-1, done=True)
    return request

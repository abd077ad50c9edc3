"""The index of a table as far as tier 2 has it: sorted runs of keys in immutable objects, and the record naming them.

The segment store writes the record, fenced by its container's claim. A table that never outgrew memory has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TABLE_INDEX_SORT = "table-index"
"""The sort key of the record, in the chunk partition of the table's segment."""


@dataclass(frozen=True, slots=True)
class IndexObject:
    """Keys from `first_key` on, up to the first key of the run's next object: `data_bytes` of blocks, and behind them
    `sparse_bytes` that say which block begins with which key, with their CRC-32C. `live` of the `entries` are no
    removals and stand for `live_bytes` of the segment."""

    name: str
    first_key: bytes
    data_bytes: int
    sparse_bytes: int
    checksum: int
    entries: int
    live: int
    live_bytes: int


IndexRun = tuple[IndexObject, ...]
"""Objects whose keys do not overlap, in order of their keys."""


@dataclass(frozen=True, slots=True)
class TableIndex:
    """`runs`, the newest first, tell the newest entry of each key among those that lie before the offset `covered`."""

    covered: int
    runs: tuple[IndexRun, ...]


def index_body(created_ms: int, index: TableIndex) -> dict[str, Any]:
    """The record's body; `created_ms` tells a table from an earlier one of its name."""
    return {
        "created": created_ms,
        "covered": index.covered,
        "runs": [[_object_body(each) for each in run] for run in index.runs],
    }


def table_index(created_ms: int, body: Mapping[str, Any]) -> TableIndex | None:
    """The index in a record; None if it is that of an earlier table of the same name."""
    if body["created"] != created_ms:
        return None
    return TableIndex(body["covered"], tuple(tuple(_object(each) for each in run) for run in body["runs"]))


def _object_body(each: IndexObject) -> list[Any]:
    return [
        each.name,
        each.first_key.hex(),
        each.data_bytes,
        each.sparse_bytes,
        each.checksum,
        each.entries,
        each.live,
        each.live_bytes,
    ]


def _object(body: list[Any]) -> IndexObject:
    name, first_key, *numbers = body
    return IndexObject(name, bytes.fromhex(first_key), *numbers)

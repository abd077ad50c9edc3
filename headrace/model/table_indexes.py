"""The part of a table's index that is in tier 2: sorted runs of keys in immutable objects, and the record of them.

The segment store writes the record, fenced by its container's claim. A table whose index has always fitted into memory
has no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TABLE_INDEX_SORT = "table-index"
"""The sort key of the record, in the chunk partition of the table's segment."""


@dataclass(frozen=True, slots=True)
class IndexObject:
    """An object with the keys from `first_key` up to the first key of the run's next object.

    It has `data_bytes` of blocks. After them `sparse_bytes` contain the first key of each block, with the CRC-32C
    `checksum`. `live` of the `entries` are not removals; they represent `live_bytes` of the segment.
    """

    name: str
    first_key: bytes
    data_bytes: int
    sparse_bytes: int
    checksum: int
    entries: int
    live: int
    live_bytes: int


IndexRun = tuple[IndexObject, ...]
"""Objects in the order of their keys, which do not overlap."""


@dataclass(frozen=True, slots=True)
class TableIndex:
    """The runs, newest first. They contain the newest entry before the offset `covered` of each key."""

    covered: int
    runs: tuple[IndexRun, ...]


def index_body(created_ms: int, index: TableIndex) -> dict[str, Any]:
    """The record's body. `created_ms` distinguishes the table from an earlier table of the same name."""
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

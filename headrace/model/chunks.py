"""Where a segment's bytes lie in tier 2: runs of bytes inside packed objects, and the records of the chunk directory.

The segment store writes these records (fenced by its container's claim), the controller's history service reads them.
A segment's runs are contiguous, do not overlap, and start and end on append boundaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_OFFSET_DIGITS = 20


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """`length` bytes of a segment from `offset` on, at `position` of the object `object_name`."""

    offset: int
    length: int
    object_name: str
    position: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def chunk_partition(segment_name: str) -> str:
    """The metadata partition that holds the runs of a segment."""
    return f"chunks/{segment_name}"


def chunk_sort(offset: int) -> str:
    """The sort key of the run that starts at `offset`; sorts as the number does."""
    return f"run/{offset:0{_OFFSET_DIGITS}d}"


def chunk_body(run: ChunkRun) -> dict[str, Any]:
    return {"length": run.length, "object": run.object_name, "position": run.position}


def chunk_run(sort: str, body: Mapping[str, Any]) -> ChunkRun:
    """The run stored under `sort`."""
    return ChunkRun(int(sort.removeprefix("run/")), body["length"], body["object"], body["position"])

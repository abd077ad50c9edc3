"""Where a segment's bytes lie in tier 2: runs of bytes inside packed objects, and the records of the chunk directory.

The segment store writes these records (fenced by its container's claim), the controller's history service reads them.
A segment's runs are contiguous, do not overlap, and start and end on append boundaries. What came by one merge enters
as a whole: by its runs, or, while there are too many of them for one transaction, by a link to the segment that has
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.model.errors import CorruptError
from headrace.model.record_fields import record_field

_OFFSET_DIGITS = 20

OFFSET_BEHIND_ALL: Final = 10**19
"""Behind every offset, with as many digits."""


class RunTimes(NamedTuple):
    """When the bytes of a run were appended: between the frames of these numbers (`headrace.model.time_points`).

    `block_length` bytes at `block_position` of the run's object tell it more exactly, if it is not 0.
    """

    first: int
    last: int
    block_position: int = 0
    block_length: int = 0


class TableMark(NamedTuple):
    """What tells a table's runs from those of other segments, and what a table cannot be read without."""

    key_length: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """`length` bytes of a segment from `offset` on, at `position` of the object `object_name`.

    `times` is None for runs that were written before there were numbers. `table` is None for segments that are no
    tables, and for runs that were written before tables were marked. `version` is that of its record: what was read of
    a run is only changed if nobody changed it meanwhile.
    """

    offset: int
    length: int
    object_name: str
    position: int
    times: RunTimes | None = None
    version: int = field(default=0, compare=False)
    table: TableMark | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length

    def moved(self, shift: int, ordering: int) -> ChunkRun:
        """The run `shift` bytes further, in the segment that it was merged into at the time `ordering` (0: unknown)."""
        times = RunTimes(ordering, ordering) if ordering else None
        return ChunkRun(self.offset + shift, self.length, self.object_name, self.position, times)


@dataclass(frozen=True, slots=True)
class RunLink:
    """`length` bytes of a segment from `offset` on, whose runs are in the directory of `segment`, from `position` on.

    It is the last entry of its segment. A link with `OFFSET_BEHIND_ALL` says the opposite: the runs of its segment are
    those of `segment`, which has a link to them.
    """

    offset: int
    length: int
    segment: str
    position: int
    ordering: int
    version: int = field(default=0, compare=False)

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def is_forwarding(self) -> bool:
        """Whether the segment's runs belong to another one."""
        return self.offset == OFFSET_BEHIND_ALL


def chunk_partition(segment_name: str) -> str:
    """The metadata partition that holds the runs of a segment."""
    return f"chunks/{segment_name}"


def chunk_sort(offset: int) -> str:
    """The sort key of the run that starts at `offset`; sorts as the number does."""
    return f"run/{offset:0{_OFFSET_DIGITS}d}"


def chunk_body(run: ChunkRun) -> dict[str, Any]:
    body: dict[str, Any] = {"length": run.length, "object": run.object_name, "position": run.position}
    if run.times is not None:
        body["times"] = list(run.times if run.times.block_length else run.times[:2])
    if run.table is not None:
        body["table"] = list(run.table)
    return body


def chunk_run(sort: str, body: Mapping[str, Any], version: int = 0) -> ChunkRun:
    """The run stored under `sort`; raises CorruptError if the body is none of a run."""
    times = _times(body["times"]) if "times" in body else None
    offset = int(sort.removeprefix("run/"))
    length, position = record_field(body, "length", int), record_field(body, "position", int)
    table = _table(body["table"]) if "table" in body else None
    return ChunkRun(offset, length, record_field(body, "object", str), position, times, version, table)


def link_body(link: RunLink) -> dict[str, Any]:
    return {
        "length": link.length,
        "segment": link.segment,
        "position": link.position,
        "times": [link.ordering, link.ordering],
    }


def is_link(body: Mapping[str, Any]) -> bool:
    """Whether a record of the chunk directory is a link, not a run."""
    return "segment" in body


def run_link(sort: str, body: Mapping[str, Any], version: int = 0) -> RunLink:
    """The link stored under `sort`; raises CorruptError if the body is none of a link."""
    times = _times(body.get("times"))
    length, position = record_field(body, "length", int), record_field(body, "position", int)
    return RunLink(
        int(sort.removeprefix("run/")), length, record_field(body, "segment", str), position, times.first, version
    )


def _times(numbers: Any) -> RunTimes:
    if not isinstance(numbers, list) or len(numbers) not in (2, 4) or any(type(each) is not int for each in numbers):
        raise CorruptError(f"a run has {numbers!r} as times, expected 2 or 4 numbers")
    return RunTimes(*numbers)


def _table(numbers: Any) -> TableMark:
    if not isinstance(numbers, list) or len(numbers) != 2 or any(type(each) is not int for each in numbers):
        raise CorruptError(f"a run has {numbers!r} as the mark of a table, expected 2 numbers")
    return TableMark(*numbers)

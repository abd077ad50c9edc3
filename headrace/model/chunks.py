"""The chunk directory: records that locate a segment's bytes in tier 2, as runs of bytes inside packed objects.

The segment store writes these records, fenced by its container's claim. The controller's history service reads them.
The runs of a segment are contiguous, do not overlap, and start and end on append boundaries. The bytes of one merge
enter the directory atomically. If their runs are too many for one transaction, the directory first gets a link to the
segment that has the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from headrace.model.errors import CorruptError
from headrace.model.record_fields import record_field

_OFFSET_DIGITS = 20

OFFSET_BEHIND_ALL: Final = 10**19
"""An offset greater than that of any run; it has as many digits as the sort keys allow."""


class RunTimes(NamedTuple):
    """The frame numbers between which the bytes of a run were appended (`headrace.model.time_points`).

    If `block_length` is not 0, that many bytes at `block_position` of the run's object are a time block, which gives
    narrower bounds for each part of the run.
    """

    first: int
    last: int
    block_position: int = 0
    block_length: int = 0


class TableMark(NamedTuple):
    """Marks the runs of a table segment, and holds the properties that a reader of the table needs."""

    key_length: int
    created_ms: int


class LogPlace(NamedTuple):
    """An entry of a container's log as the owner of `epoch` had it. Only with the epoch a number names one entry."""

    epoch: int
    entry: int


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """`length` bytes of a segment from `offset` on, at `position` of the object `object_name`.

    `times` is None for a part of a run, and `table` for segments that are not tables. `version` is the version of its
    record: a write under it fails if another process has changed the run since it was read.

    `logged` is the newest entry with bytes of the run, None if a revision without it has written the run.
    """

    offset: int
    length: int
    object_name: str
    position: int
    times: RunTimes | None = None
    version: int = field(default=0, compare=False)
    table: TableMark | None = None
    logged: LogPlace | None = field(default=None, compare=False)

    @property
    def end(self) -> int:
        return self.offset + self.length

    def moved(self, shift: int, ordering: int) -> ChunkRun:
        """The run at an offset `shift` bytes higher, in the segment into which it was merged.

        `ordering` is the frame number of the merge.
        """
        times = RunTimes(ordering, ordering)
        moved = ChunkRun(self.offset + shift, self.length, self.object_name, self.position, times)
        return replace(moved, logged=self.logged)


@dataclass(frozen=True, slots=True)
class RunLink:
    """`length` bytes of a segment from `offset` on, whose runs are in the directory of `segment`, from `position` on.

    It is the last entry of its segment. A link at `OFFSET_BEHIND_ALL` points in the other direction: the runs of its
    segment belong to `segment`, which has a link to them.
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
        """Whether the runs of this segment belong to another segment."""
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
    if run.logged is not None:
        body["log"] = list(run.logged)
    return body


def chunk_run(sort: str, body: Mapping[str, Any], version: int = 0) -> ChunkRun:
    """The run stored under `sort`; raises CorruptError if the body is not that of a run."""
    times = _times(body["times"]) if "times" in body else None
    offset = int(sort.removeprefix("run/"))
    length, position = record_field(body, "length", int), record_field(body, "position", int)
    table = _table(body["table"]) if "table" in body else None
    logged = _logged(body["log"]) if "log" in body else None
    return ChunkRun(offset, length, record_field(body, "object", str), position, times, version, table, logged)


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
    """The link stored under `sort`; raises CorruptError if the body is not that of a link."""
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


def _logged(numbers: Any) -> LogPlace:
    if not isinstance(numbers, list) or len(numbers) != 2 or any(type(each) is not int for each in numbers):
        raise CorruptError(f"a run has {numbers!r} as the place in a log, expected 2 numbers")
    return LogPlace(*numbers)


# Packed objects of a container: their names, and the records that count the runs in each object.
#
# An object without runs is garbage and is deleted.

_NUMBER_DIGITS = 10


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """The number of `runs` in a packed object of `length` bytes, and their `run_bytes`.

    `emptied_at_ms` is the time since which the object has no runs; None while it has some.
    """

    runs: int
    run_bytes: int
    length: int
    emptied_at_ms: int | None = None

    def changed(self, runs: int, run_bytes: int, now_ms: int) -> ObjectCount:
        """The count after `runs` and `run_bytes` were added (negative: removed)."""
        left = self.runs + runs
        return ObjectCount(left, self.run_bytes + run_bytes, self.length, None if left else now_ms)


def object_partition(container: int) -> str:
    """The metadata partition that counts the packed objects of a container; sort keys are their names."""
    return f"objects/container-{container:04d}"


def object_body(count: ObjectCount) -> dict[str, Any]:
    body = {"runs": count.runs, "bytes": count.run_bytes, "length": count.length}
    return body if count.emptied_at_ms is None else {**body, "emptiedAtMs": count.emptied_at_ms}


def object_count(body: Mapping[str, Any]) -> ObjectCount:
    """The count stored in a record body; raises CorruptError if the body is not that of a count."""
    runs, run_bytes, length = (record_field(body, name, int) for name in ("runs", "bytes", "length"))
    return ObjectCount(
        runs, run_bytes, length, record_field(body, "emptiedAtMs", int) if "emptiedAtMs" in body else None
    )


def packed_prefix(container: int) -> str:
    """The prefix of the names of a container's packed objects."""
    return f"container-{container:04d}/packed/"


def packed_name(container: int, epoch: int, number: int) -> str:
    """The name of the packed object `number` that the container's owner of `epoch` writes."""
    return f"{packed_prefix(container)}{epoch:0{_NUMBER_DIGITS}d}-{number:0{_NUMBER_DIGITS}d}"


def packed_epoch(container: int, name: str) -> int | None:
    """The epoch in the name of a packed object; None for any other name."""
    digits = name.removeprefix(packed_prefix(container))
    if len(digits) != 2 * _NUMBER_DIGITS + 1 or digits[_NUMBER_DIGITS] != "-":
        return None
    epoch, number = digits[:_NUMBER_DIGITS], digits[_NUMBER_DIGITS + 1 :]
    return int(epoch) if (epoch + number).isascii() and (epoch + number).isdigit() else None

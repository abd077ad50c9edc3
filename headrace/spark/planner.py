"""The end of a streaming query's next batch. Pure: segment ranges in, a stream cut out; its only request is `locate`.

A batch is the range between two stream cuts. The rules:
- The budget is divided evenly among the open segments. No open segment is skipped.
- A segment is open when everything written to its keys before it is planned: all segments that its scale replaced are
  read to their ends. So a cut always covers the key space exactly once, and keys keep their order across batches.
- A batch ends on event boundaries, which `locate` finds. The bytes from the budget to the next boundary are overshoot.

The events of a batch follow from its two cuts alone (`ranges_between` of the stream access), never from this module: a
batch that Spark repeats after a crash reads the same bytes, even if the stream has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.segment_ranges import SegmentRange
from headrace.model.errors import CorruptError

Positions = Mapping[int, int]
"""A stream cut without its stream's name: segment id -> offset."""

LocateBoundary = Callable[[int, int], int]
"""(segment id, target offset) -> an event boundary at or after the target, possibly beyond the range in question."""


@dataclass(frozen=True, slots=True)
class NextCut:
    """`length_bytes` counts from the current cut to this one; `reached_end`: nothing is left to plan."""

    positions: dict[int, int]
    length_bytes: int
    reached_end: bool


def next_cut(
    ranges: Sequence[SegmentRange],
    current: Positions,
    *,
    budget_bytes: int | None,
    locate: LocateBoundary,
    strict_key_order: bool = False,
) -> NextCut:
    """A stream cut after `current` with about `budget_bytes` between them (None: everything there is).

    `ranges` is everything between `current` and the latest cut to plan up to. The budget is exceeded by at most
    one overshoot per open segment. With `strict_key_order` a segment never shares a batch with the segments it
    succeeded, unless one of them has nothing to read.

    Raises:
        CorruptError: the ranges do not fit `current`, or `locate` answered an offset before its target.
        ValueError: the budget is not positive.
    """
    if budget_bytes is not None and budget_bytes < 1:
        raise ValueError(f"budget_bytes must be positive, not {budget_bytes}")
    frontier = _Frontier(ranges, current)
    left = sum(part.length_bytes for part in ranges) if budget_bytes is None else budget_bytes
    planned = 0
    while left > planned and (open_ranges := frontier.open_ranges(strict_key_order)):
        share = max(1, (left - planned) // len(open_ranges))
        finishing = [part for part in open_ranges if frontier.remaining(part) <= share]
        if finishing:
            planned += sum(frontier.advance(part, part.end) for part in finishing)
            continue
        for part in open_ranges:
            target = frontier.positions[part.segment_id] + share
            planned += frontier.advance(part, _boundary(part, target, locate))
        break
    if not strict_key_order:
        frontier.hand_over()
    return NextCut(dict(sorted(frontier.positions.items())), planned, frontier.at_end())


def _boundary(part: SegmentRange, target: int, locate: LocateBoundary) -> int:
    offset = locate(part.segment_id, target)
    if offset < target:
        raise CorruptError(
            f"segment {part.segment_id}: asked for an event boundary at or after {target}, was given {offset}",
            details={"segment": part.segment_id, "target": target, "offset": offset},
        )
    return min(offset, part.end)


class _Frontier:
    """A moving stream cut."""

    def __init__(self, ranges: Sequence[SegmentRange], current: Positions) -> None:
        self._ranges = {part.segment_id: part for part in ranges}
        self.positions = dict(current)
        for segment_id, offset in current.items():
            part = self._ranges.get(segment_id)
            if part is None or part.start != offset:
                raise CorruptError(
                    f"the ranges after the stream cut do not start at its segment {segment_id}, offset {offset}",
                    details={"segment": segment_id, "offset": offset},
                )
        self.hand_over()

    def remaining(self, part: SegmentRange) -> int:
        return part.end - self.positions[part.segment_id]

    def open_ranges(self, strict_key_order: bool) -> list[SegmentRange]:
        """What can be read now, smallest segment id first, so that plans do not depend on the order of answers."""
        if not strict_key_order:
            self.hand_over()
        parts = (self._ranges[segment_id] for segment_id in sorted(self.positions))
        return [part for part in parts if self.remaining(part) > 0]

    def advance(self, part: SegmentRange, offset: int) -> int:
        """Moves a segment's position forward; the number of bytes passed."""
        passed = offset - self.positions[part.segment_id]
        self.positions[part.segment_id] = offset
        return passed

    def hand_over(self) -> None:
        """Replaces segments that are read to their ends by their successors, as far as that goes.

        Segments change hands in groups: all that a scale connected (a merge waits for all it merges), because only
        then does the cut cover each key exactly once again.
        """
        waiting = [segment_id for segment_id in self.positions if self._ranges[segment_id].successors]
        while waiting:
            segment_id = waiting.pop()
            if segment_id not in self.positions:
                continue
            retired, opened = self._scale_group(segment_id)
            if all(old in self.positions and self.remaining(self._ranges[old]) == 0 for old in retired):
                for old in retired:
                    del self.positions[old]
                for new in opened:
                    self.positions[new] = self._ranges[new].start
                    if self._ranges[new].successors:
                        waiting.append(new)

    def at_end(self) -> bool:
        return all(
            self.remaining(self._ranges[segment_id]) == 0 and not self._ranges[segment_id].successors
            for segment_id in self.positions
        )

    def _scale_group(self, segment_id: int) -> tuple[set[int], set[int]]:
        """The segments that were replaced together with this one, and what replaced them."""
        retired, opened, waiting = {segment_id}, set[int](), [segment_id]
        while waiting:
            fresh = set(self._ranges[waiting.pop()].successors) - opened
            opened |= fresh
            for new in fresh:
                joining = set(self._ranges[new].predecessors) - retired
                retired |= joining
                waiting.extend(joining)
        return retired, opened

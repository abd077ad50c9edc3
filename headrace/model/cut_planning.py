"""The next batch of a reader: from a stream cut to a later one, with about as many bytes between them as it asks for.

The rules:
- The budget is divided evenly among the open segments. No open segment is skipped.
- A segment is open when everything written to its keys before it is planned: all segments that its scale replaced are
  read to their ends. So a cut always covers the key space exactly once, and keys keep their order across batches.
- A batch ends on event boundaries. The bytes from the budget to the next boundary are overshoot.

The walk looks up only what the batch passes: the ends of segments, and the epochs that replaced them. The ranges
between two cuts follow from the cuts alone: `stream_cut_ranges.segments_between` finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.model.epochs import Epoch
from headrace.model.errors import CorruptError
from headrace.model.segments import StreamSegment
from headrace.model.stream_cut_ranges import SegmentRange
from headrace.model.stream_cuts import invalid_cut


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where the walk leaves a segment. `replaced_in` is the epoch in which it continues, None if it ends here."""

    offset: int
    replaced_in: int | None


class Lineage(Protocol):
    """The history of a stream up to the cut at which the walk ends. Answers never change during a walk."""

    def ends(self, segments: Sequence[StreamSegment]) -> Mapping[int, SegmentEnd]:
        """The end of each segment, by its id. For a segment that the last cut names it is the offset there."""
        ...

    def epochs(self, numbers: Sequence[int]) -> Mapping[int, Epoch]:
        """These epochs by number."""
        ...

    def boundaries(self, targets: Sequence[tuple[int, int]]) -> Sequence[int]:
        """For each (segment id, target) an event boundary at or after the target, possibly far beyond it."""
        ...


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What bounds a batch.

    The budget is exceeded by at most one overshoot per open segment; None means everything. With `strict_key_order` a
    segment is never in one batch with the segments that it replaced, unless one of them has nothing to read. The batch
    ends early when it has opened `opened_max` segments, of which the last scale may open more, and it opens none of an
    epoch after `last_epoch`.
    """

    budget_bytes: int | None = None
    strict_key_order: bool = False
    opened_max: int | None = None
    last_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch. `positions` and `segments` are those of the cut at its end; `ranges` has empty ranges too.

    `reached_end`: nothing is left up to the end of the walk.
    """

    positions: dict[int, int]
    segments: tuple[StreamSegment, ...]
    ranges: list[SegmentRange]
    length_bytes: int
    reached_end: bool


def plan_batch(
    segments: Iterable[StreamSegment], offsets: Mapping[int, int], lineage: Lineage, rules: BatchRules
) -> PlannedBatch:
    """The next batch after the cut at `offsets`, whose segments are `segments`.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": the cut is beyond the end of a segment, or reading cannot go on
            from it to the end of the walk, because one of the two is not a cut of the stream.
        CorruptError: a boundary is before its target.
        ValueError: the budget is not positive.
    """
    budget_bytes = rules.budget_bytes
    if budget_bytes is not None and budget_bytes < 1:
        raise ValueError(f"the budget must be positive, not {budget_bytes}")
    frontier = _Frontier(segments, offsets, lineage, rules)
    frontier.hand_over()
    planned = 0
    while (budget_bytes is None or planned < budget_bytes) and (waiting := frontier.unread()):
        share = None if budget_bytes is None else max(1, (budget_bytes - planned) // len(waiting))
        finishing = [each for each in waiting if share is None or frontier.left(each) <= share]
        if share is not None and not finishing:
            planned += frontier.advance_by(share, waiting)
            break
        planned += sum(frontier.finish(each) for each in finishing)
        if not rules.strict_key_order:
            frontier.hand_over()
    if not rules.strict_key_order:
        frontier.hand_over()
    batch = frontier.batch(planned)
    if batch.positions == dict(offsets) and not batch.reached_end:
        raise invalid_cut("no read that starts at it arrives at the cut in which the batch must end")
    return batch


class _Frontier:
    """A moving stream cut."""

    def __init__(
        self, segments: Iterable[StreamSegment], offsets: Mapping[int, int], lineage: Lineage, rules: BatchRules
    ) -> None:
        self._lineage = lineage
        self._rules = rules
        self._positions: dict[int, int] = {}
        self._starts = dict(offsets)
        self._segments: dict[int, StreamSegment] = {}
        self._ends: dict[int, SegmentEnd] = {}
        self._predecessors: dict[int, tuple[int, ...]] = {}
        self._opened = 0
        self._open(list(segments))

    def unread(self) -> list[int]:
        """The open segments with bytes to read, smallest id first: plans do not depend on the order of answers."""
        return [identifier for identifier in sorted(self._positions) if self.left(identifier) > 0]

    def left(self, identifier: int) -> int:
        return self._ends[identifier].offset - self._positions[identifier]

    def finish(self, identifier: int) -> int:
        """Moves to the end of a segment; the number of bytes passed."""
        return self._advance(identifier, self._ends[identifier].offset)

    def advance_by(self, share: int, identifiers: Sequence[int]) -> int:
        """Moves forward by `share` in each segment, to the next event boundary; the number of bytes passed."""
        targets = [(identifier, self._positions[identifier] + share) for identifier in identifiers]
        passed = 0
        for (identifier, target), offset in zip(targets, self._lineage.boundaries(targets), strict=True):
            if offset < target:
                raise CorruptError(
                    f"segment {identifier}: asked for an event boundary at or after {target}, was given {offset}",
                    details={"segment": identifier, "target": target, "offset": offset},
                )
            passed += self._advance(identifier, min(offset, self._ends[identifier].offset))
        return passed

    def hand_over(self) -> None:
        """Replaces segments that are read to their ends by their successors, as far as that goes.

        Segments change hands in groups: all that a scale connected (a merge waits for all it merges), because only
        then does the cut cover each key exactly once again.
        """
        candidates = list(self._positions)
        while candidates and not self._is_full:
            finished: dict[int, list[int]] = {}
            for identifier in sorted(candidates):
                number = self._next_epoch(identifier)
                if number is not None:
                    finished.setdefault(number, []).append(identifier)
            epochs = self._lineage.epochs(sorted(finished))
            opened = [each for number in sorted(finished) for each in self._pass(epochs[number], finished[number])]
            self._open(opened)
            candidates = [segment.segment_id for segment in opened]

    def batch(self, length_bytes: int) -> PlannedBatch:
        reached_end = all(
            self.left(identifier) == 0 and self._ends[identifier].replaced_in is None for identifier in self._positions
        )
        front = tuple(self._segments[identifier] for identifier in sorted(self._positions))
        positions = dict(sorted(self._positions.items()))
        return PlannedBatch(positions, front, self._ranges(), length_bytes, reached_end)

    @property
    def _is_full(self) -> bool:
        return self._rules.opened_max is not None and self._opened >= self._rules.opened_max

    def _open(self, segments: Sequence[StreamSegment]) -> None:
        if not segments:
            return
        self._ends |= self._lineage.ends(segments)
        for segment in segments:
            identifier = segment.segment_id
            self._segments[identifier] = segment
            self._positions[identifier] = start = self._starts.setdefault(identifier, 0)
            if start > self._ends[identifier].offset:
                raise invalid_cut(
                    f"'from' is at {start} of segment {identifier}, which ends at {self._ends[identifier].offset}"
                )

    def _advance(self, identifier: int, offset: int) -> int:
        passed = offset - self._positions[identifier]
        self._positions[identifier] = offset
        return passed

    def _next_epoch(self, identifier: int) -> int | None:
        """The epoch in which a segment that is read to its end continues; None if it is not, or may not continue."""
        number = self._ends[identifier].replaced_in
        if number is None or self.left(identifier) > 0:
            return None
        return None if self._rules.last_epoch is not None and number > self._rules.last_epoch else number

    def _pass(self, epoch: Epoch, finished: Sequence[int]) -> list[StreamSegment]:
        """Replaces the groups of this epoch that are finished; the segments that are open now."""
        checked: set[StreamSegment] = set()
        opened: list[StreamSegment] = []
        for identifier in finished:
            segment = self._segments[identifier]
            if segment in checked or self._is_full:
                continue
            retired, following = _scale_group(epoch, segment)
            checked |= retired
            if any(
                segment.segment_id not in self._positions or self.left(segment.segment_id) > 0 for segment in retired
            ):
                continue
            for each in retired:
                del self._positions[each.segment_id]
            self._opened += len(following)
            for each in following:
                self._predecessors[each.segment_id] = tuple(before.segment_id for before in epoch.predecessors_of(each))
                opened.append(each)
        return opened

    def _ranges(self) -> list[SegmentRange]:
        identifiers = sorted(self._segments)  # An id starts with its epoch, so predecessors come first.
        successors: dict[int, list[int]] = {identifier: [] for identifier in identifiers}
        for identifier in identifiers:
            for before in self._predecessors.get(identifier, ()):
                successors[before].append(identifier)
        return [
            SegmentRange(
                self._segments[identifier],
                self._starts[identifier],
                self._positions.get(identifier, self._ends[identifier].offset),
                self._predecessors.get(identifier, ()),
                tuple(successors[identifier]),
            )
            for identifier in identifiers
        ]


def _scale_group(epoch: Epoch, segment: StreamSegment) -> tuple[set[StreamSegment], set[StreamSegment]]:
    """The segments that the epoch replaced together with this one, and what replaced them."""
    retired, opened, waiting = {segment}, set[StreamSegment](), [segment]
    while waiting:
        fresh = set(epoch.successors_of(waiting.pop())) - opened
        opened |= fresh
        for new in fresh:
            joining = set(epoch.predecessors_of(new)) - retired
            retired |= joining
            waiting.extend(joining)
    return retired, opened

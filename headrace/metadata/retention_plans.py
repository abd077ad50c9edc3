"""Where a stream would be truncated now: applies the retention rules to the retention set and the subscribers.

A plan costs one query for the subscribers, and reads only the cuts of the set that matter. Without subscribers this is
one cut; with subscribers it is about two for each doubling of the set. If the head of the stream is after a cut in some
key ranges, a plan reads one cut more for each doubling, and the epochs in between that are not cached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.retention_records import RetainedStream, RetentionRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.errors import UnavailableError
from headrace.model.names import segment_name
from headrace.model.retention import Counting, Cuts, Decision, Measures, RetentionCase, RetentionCut, decide
from headrace.model.stream_cuts import CutOrder, PlacedCut, StreamCut, compare_cuts
from headrace.model.streams import Stream
from headrace.model.subscribers import lower_bound, upper_bound
from headrace.model.truncation import Truncation, bytes_cut_off, bytes_that_go, running_truncation, segments_that_go
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

_EPOCHS_PER_PIECE = 1_000

Find = Callable[[RetentionCut], Truncation]


@dataclass(frozen=True, slots=True)
class Plan:
    """Truncate the stream at `target`, or not at all if `target` is None.

    `size_bytes` is the number of bytes before `target`, counted since the creation of the stream.
    """

    decision: Decision
    target: PlacedCut | None = None
    size_bytes: int = 0


class RetentionPlanner:
    """Makes plans and measures cuts; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._records = RetentionRecords(store)
        self._subscribers = SubscriberRecords(store)
        self._history = HistoryRecords(store)

    def size_at(self, stream: Stream, place: PlacedCut, before: Truncation | None) -> int:
        """The bytes before `place`, since the stream's creation. The count starts at `before`, or at the creation.

        It costs one read for each hundred epochs between the two that are not cached.

        Raises:
            UnavailableError: a segment between the two is just being sealed.
        """
        counting = start_counting(place, 0, before)
        while not counting.is_done:
            counting = self.count_piece(stream, counting, before)
        return counting.size_bytes

    def count_piece(self, stream: Stream, counting: Counting, before: Truncation | None) -> Counting:
        """Count the bytes of some more epochs; `before` is where the count started. Raises as `size_at` does."""
        running = running_truncation(counting.place, 0, before)
        numbers = range(counting.next_epoch, min(counting.next_epoch + _EPOCHS_PER_PIECE, running.epochs.stop))
        epochs = self._history.epochs(stream, numbers)
        gone = [segment.segment_id for epoch in epochs for segment in segments_that_go(running, epoch)]
        sealed = self._history.sealed_segments(stream, gone)
        if len(sealed) < len(gone):
            raise UnavailableError(f"segments of {stream.scoped_name} are just being sealed: repeat soon")
        size = bytes_that_go(running, {identifier: end.length for identifier, end in sealed.items()})
        return replace(counting, next_epoch=numbers.stop, size_bytes=counting.size_bytes + size)

    def plan(self, retained: RetainedStream, cuts: Cuts, known: Mapping[RetentionCut, Truncation], now_ms: int) -> Plan:
        """The truncation that is due now. `cuts` are after the head; `known` has the positions that were already read.

        Without cuts the plan does not read the subscribers.

        Raises:
            ConflictError: the retention set has changed since it was read.
        """
        policy = retained.stream.configuration.retention
        if policy is None or not cuts:
            return Plan(Decision(RetentionCase.NOT_ENOUGH))
        subscribers = self._subscribers.all(retained.stream)
        truncations = dict(known)

        def find(cut: RetentionCut) -> Truncation:
            if cut not in truncations:
                truncations[cut] = self._records.cut(retained.stream, cut)
            return truncations[cut]

        def size_after(cut: RetentionCut) -> int:
            if retained.truncation is None:
                return cut.size_bytes
            place = find(cut)
            return self.size_at(retained.stream, _not_before_head(retained, place.head), place)

        bound = None
        if subscribers:  # The newest cut is the upper limit of the bound: the plan does not read the tail.
            positions = [subscriber.position for subscriber in subscribers]
            bound = _not_before_head(retained, lower_bound([*positions, find(cuts[-1]).head]))
            bound = self._within_segments(retained.stream, bound)
        at_bound = _AtBound(self, retained, cuts, bound, find) if bound else None
        measures = Measures(
            place=lambda cut: find(cut).head,
            size_after=size_after,
            remaining=lambda cut: cuts[-1].size_bytes - at_bound.size_before(cut) if at_bound else 0,
        )
        decision = decide(policy, cuts, now_ms, cuts[-1].size_bytes - retained.head_bytes, bound, measures)
        if decision.at_bound and at_bound is not None:
            target, size = at_bound.place(decision.cut), at_bound.size_before(decision.cut)
        elif decision.cut is not None:
            target, size = _not_before_head(retained, find(decision.cut).head), size_after(decision.cut)
        else:
            return Plan(decision)
        if size <= retained.head_bytes:
            return Plan(decision)
        return Plan(decision, target, size)

    def _within_segments(self, stream: Stream, place: PlacedCut) -> PlacedCut:
        """The place without offsets after the ends of sealed segments; one read if it has segments that are not cached.

        A reader has such an offset when a volume was lost with bytes that it had read.
        """
        active = stream.epoch.by_id
        sealed = self._history.sealed_segments(
            stream, [identifier for identifier, _ in place.cut.positions if identifier not in active]
        )
        return place.within({identifier: end.length for identifier, end in sealed.items()})


class _AtBound:
    """The lower bound of the subscribers and the bytes before it; given a cut, the earlier of bound and cut."""

    def __init__(
        self, planner: RetentionPlanner, retained: RetainedStream, cuts: Cuts, bound: PlacedCut, find: Find
    ) -> None:
        self._planner = planner
        self._retained = retained
        self._cuts = cuts
        self._bound = bound
        self._find = find
        self._passed: int | None = None

    def place(self, cut: RetentionCut | None) -> PlacedCut:
        if cut is None:
            return self._bound
        return _not_before_head(self._retained, lower_bound([self._find(cut).head, self._bound]))

    def size_before(self, cut: RetentionCut | None) -> int:
        """The bytes before `place(cut)`, since the stream's creation.

        The count starts at the newest cut that is not after the place in any key range.
        """
        passed = self._cuts_passed() if cut is None else min(self._cuts_passed(), self._cuts.index(cut) + 1)
        before = self._find(self._cuts[passed - 1]) if passed else self._retained.truncation
        return self._planner.size_at(self._retained.stream, self.place(cut), before)

    def _cuts_passed(self) -> int:
        """The number of cuts that are not after the lower bound in any key range."""
        if self._passed is None:
            self._passed = bisect_left(
                self._cuts,
                True,
                key=lambda cut: compare_cuts(self._bound, self._find(cut).head) is not CutOrder.EQUAL_OR_AFTER,
            )
        return self._passed


def start_counting(place: PlacedCut, first_epoch: int, before: Truncation | None) -> Counting:
    """A new count of the bytes between `before` (None: the stream's creation) and `place`, before its first piece."""
    running = running_truncation(place, first_epoch, before)
    before_bytes = before.size_bytes if before else 0
    return Counting(place, first_epoch, before_bytes, running.epochs.start, before_bytes + bytes_cut_off(running))


def tail_of(segment_stores: SegmentStores, stream: Stream) -> PlacedCut:
    """The cut at the ends of the active segments; one request to each store.

    While segments are being replaced it may be a little before the tail, but it is always a valid cut.
    """
    segments = stream.epoch.segments
    names = [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    infos = segment_stores.segment_infos(names)
    lengths = {segment.segment_id: info.length for segment, info in zip(segments, infos, strict=True)}
    return PlacedCut(StreamCut.of(stream.scope, stream.name, lengths), segments)


def _not_before_head(retained: RetainedStream, place: PlacedCut) -> PlacedCut:
    return upper_bound([place, retained.truncation.head]) if retained.truncation else place

"""Where a stream would be truncated now: the retention set and the subscribers, read as far as the rules ask.

A plan costs one query for the subscribers, and reads only those cuts of the set that matter: without subscribers one,
with them about two for each doubling of the set. Where the head of the stream lies behind a cut in some key ranges, one
more for each doubling, and the epochs between that nobody has asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.retention_records import RetainedStream, RetentionRecords
from headrace.metadata.subscriber_records import SubscriberRecords
from headrace.model.errors import UnavailableError
from headrace.model.names import segment_name
from headrace.model.retention import Cuts, Decision, LowerBound, RetentionCase, RetentionCut, decide
from headrace.model.stream_cut_order import CutOrder, PlacedCut, compare_cuts
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream
from headrace.model.subscribers import lower_bound, upper_bound
from headrace.model.truncation import Truncation, bytes_cut_off, bytes_that_go, running_truncation, segments_that_go
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

_EPOCHS_PER_PIECE = 1_000

Find = Callable[[RetentionCut], Truncation]


@dataclass(frozen=True, slots=True)
class Plan:
    """Truncate at `target`, before which `size_bytes` lie since the stream's creation; None: nothing is to go."""

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
        """What lies before `place` since the stream's creation, counted on from `before` (None: the beginning).

        It costs a read for each hundred epochs between the two that nobody has asked for.

        Raises:
            UnavailableError: a segment between is just being sealed.
        """
        running = running_truncation(place, 0, before)
        total = (before.size_bytes if before else 0) + bytes_cut_off(running)
        for start in range(running.epochs.start, running.epochs.stop, _EPOCHS_PER_PIECE):
            numbers = range(start, min(start + _EPOCHS_PER_PIECE, running.epochs.stop))
            epochs = self._history.epochs(stream, numbers)
            gone = [one.segment_id for epoch in epochs for one in segments_that_go(running, epoch)]
            sealed = self._history.sealed_segments(stream, gone)
            if len(sealed) < len(gone):
                raise UnavailableError(f"segments of {stream.scoped_name} are just being sealed: repeat soon")
            total += bytes_that_go(running, {identifier: one.length for identifier, one in sealed.items()})
        return total

    def plan(self, retained: RetainedStream, cuts: Cuts, known: Mapping[RetentionCut, Truncation], now_ms: int) -> Plan:
        """What is to go now. `cuts` lie after the head; `known` holds those of them whose positions are at hand.

        Without cuts nobody asks for subscribers.

        Raises:
            ConflictError: the retention set was changed meanwhile.
        """
        policy = retained.stream.configuration.retention
        if policy is None or not cuts:
            return Plan(Decision(RetentionCase.NOT_ENOUGH))
        subscribers = self._subscribers.all(retained.stream)
        found = dict(known)

        def find(cut: RetentionCut) -> Truncation:
            if cut not in found:
                found[cut] = self._records.cut(retained.stream, cut)
            return found[cut]

        bound = None
        if subscribers:
            bound = self._bound(retained, cuts, [one.position for one in subscribers], find)

        def size_after(cut: RetentionCut) -> int:
            if retained.truncation is None:
                return cut.size_bytes
            place = find(cut)
            return self.size_at(retained.stream, _not_before_head(retained, place.head), place)

        decision = decide(policy, cuts, now_ms, bound, lambda cut: find(cut).head, size_after)
        if decision.at_lower_bound and bound is not None:
            target, size = bound.position, cuts[-1].size_bytes - bound.retained_bytes
        elif decision.cut is not None:
            target, size = _not_before_head(retained, find(decision.cut).head), size_after(decision.cut)
        else:
            return Plan(decision)
        if size <= retained.head_bytes:
            return Plan(decision)
        return Plan(decision, target, size)

    def _bound(self, retained: RetainedStream, cuts: Cuts, positions: list[PlacedCut], find: Find) -> LowerBound:
        """Where all have read to, not before the head, and not behind the newest cut: how far the tail is unknown."""
        newest = find(cuts[-1])
        place = _not_before_head(retained, lower_bound([*positions, newest.head]))
        # The last cut that is nowhere behind it is the nearest place from which to count.
        count = bisect_left(
            cuts, True, key=lambda cut: compare_cuts(place, find(cut).head) is not CutOrder.EQUAL_OR_AFTER
        )
        nearest = find(cuts[count - 1]) if count else retained.truncation
        size = self.size_at(retained.stream, place, nearest)
        return LowerBound(place, cuts[-1].size_bytes - size)


def tail_of(segment_stores: SegmentStores, stream: Stream) -> PlacedCut:
    """The cut at the ends of the active segments, one question to each store.

    While segments are being replaced it may lie a little before the tail; it is a cut all the same.
    """
    segments = stream.epoch.segments
    names = [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    infos = segment_stores.segment_infos(names)
    lengths = {segment.segment_id: info.length for segment, info in zip(segments, infos, strict=True)}
    return PlacedCut(StreamCut.of(stream.scope, stream.name, lengths), segments)


def _not_before_head(retained: RetainedStream, place: PlacedCut) -> PlacedCut:
    return upper_bound([place, retained.truncation.head]) if retained.truncation else place

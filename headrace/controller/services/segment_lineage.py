"""The history of a stream as walks from cut to cut read it, and what a truncation has left of a cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.api.plans import LostBytes
from headrace.controller.services.stream_ends import StreamEnds
from headrace.metadata.history_records import RECORDS_PER_READ, HistoryRecords
from headrace.model.cut_planning import BatchRules, SegmentEnd, plan_batch
from headrace.model.epochs import Epoch
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.limits import SEGMENTS_PER_CUT_MAX
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import PlacedCut, StreamCut, invalid_cut, later_cut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.segment_stores import SegmentStores

# The history of a stream as a plan of a batch walks it: read page by page, and only where the walk comes.
#
# Records are read in batches, and the lengths of all active segments with one call to the stores, when the walk comes
# to the first of them. So a plan costs what the batch passes, not what is behind it.

EPOCHS_AHEAD_FIRST = 8
"""Epochs that the second read of a walk takes in addition; each further read takes twice as many."""


class NotLoadedError(Exception):
    """The walk has not read this yet."""


class SegmentLineage:
    """`cut_planning.Lineage` of one stream, for one request.

    `end` is the cut at which the walk ends, None for the tail. The walk has checked that it comes to `end`.
    """

    def __init__(
        self,
        history: HistoryRecords,
        stream_ends: StreamEnds,
        segment_stores: SegmentStores,
        stream: Stream,
        end: StreamCut | None,
    ) -> None:
        self._history = history
        self._stream_ends = stream_ends
        self._segment_stores = segment_stores
        self._stream = stream
        self._named_end = None if end is None else end.offsets
        self._tail: Mapping[int, int] | None = None
        self._newest = {newest_segment.segment_id for newest_segment in stream_ends.newest_segments(stream)}
        self._ends: dict[int, SegmentEnd] = {}
        self._epochs: dict[int, Epoch] = {}
        self._ahead = 0
        self._foreseen: list[int] = []

    def ends(self, segments: Sequence[StreamSegment]) -> Mapping[int, SegmentEnd]:
        wanted = [segment.segment_id for segment in segments]
        self._load_ends([identifier for identifier in wanted if identifier not in self._ends])
        return {identifier: self._ends[identifier] for identifier in wanted}

    def epochs(self, numbers: Sequence[int]) -> Mapping[int, Epoch]:
        missing = [number for number in numbers if number not in self._epochs]
        if missing:
            self._load_epochs(missing)
        return {number: self._epochs[number] for number in numbers}

    def boundaries(self, targets: Sequence[tuple[int, int]]) -> Sequence[int]:
        scope, stream = self._stream.scope, self._stream.name
        named = [(segment_name(scope, stream, identifier), target) for identifier, target in targets]
        try:
            offsets = self._segment_stores.locate_offsets(named)
        except NotFoundError as gone:
            raise UnavailableError(
                f"stream {self._stream.scoped_name} is being truncated or deleted: repeat soon", details=gone.details
            ) from gone
        for (identifier, target), offset in zip(targets, offsets, strict=True):
            if offset < target and self._named_end is not None and identifier in self._named_end:
                raise invalid_cut(f"'to' is at {self._named_end[identifier]} of segment {identifier}, at {offset} now")
        return offsets

    def loaded(self) -> LoadedLineage:
        """What the walk has read so far."""
        return LoadedLineage(self._ends, self._epochs, self._named_end or self._tail or {})

    def _load_ends(self, identifiers: Sequence[int]) -> None:
        if not identifiers:
            return
        if self._named_end is None and self._tail is None and not self._newest.isdisjoint(identifiers):
            self._tail = self._stream_ends.tail(self._stream).offsets
        end = self._named_end or self._tail or {}
        self._ends |= {identifier: SegmentEnd(end[identifier], None) for identifier in identifiers if identifier in end}
        passed = [identifier for identifier in identifiers if identifier not in end]
        if not passed:
            return
        foreseen = [each for each in self._foreseen if each not in end and each not in self._ends]
        self._foreseen = []
        sealed = self._history.sealed_segments(self._stream, list(dict.fromkeys([*passed, *foreseen])))
        self._ends |= {identifier: SegmentEnd(end.length, end.replaced_in) for identifier, end in sealed.items()}
        unrecorded = [identifier for identifier in passed if identifier not in sealed]
        if unrecorded:
            self._load_unrecorded(unrecorded)

    def _load_unrecorded(self, identifiers: Sequence[int]) -> None:
        """The ends of segments that a running operation replaces."""
        sizes = self._stream_ends.unrecorded_sizes(self._stream, identifiers)
        coming = {
            segment.segment_id: epoch.number
            for epoch in self._stream_ends.coming(self._stream)
            for segment in epoch.replaced
        }
        self._ends |= {identifier: SegmentEnd(sizes[identifier], coming.get(identifier)) for identifier in identifiers}

    def _load_epochs(self, missing: Sequence[int]) -> None:
        last = min(self._stream.recorded_epoch, missing[0] + self._ahead)
        room = max(0, RECORDS_PER_READ - len(missing))
        ahead = [
            number for number in range(missing[0] + 1, last + 1) if number not in self._epochs and number not in missing
        ]
        numbers = sorted([*missing, *ahead[:room]])
        for epoch in self._history.epochs(self._stream, numbers):
            self._epochs[epoch.number] = epoch
            if len(self._foreseen) < SEGMENTS_PER_CUT_MAX:
                self._foreseen += [
                    segment.segment_id for segment in epoch.created if segment.segment_id not in self._newest
                ]
        self._ahead = min(RECORDS_PER_READ, max(EPOCHS_AHEAD_FIRST, 2 * self._ahead))


class LoadedLineage:
    """`cut_planning.Lineage` of what is in memory. Every method raises NotLoadedError for anything else."""

    def __init__(
        self, ends: Mapping[int, SegmentEnd], epochs: Mapping[int, Epoch], last_cut: Mapping[int, int]
    ) -> None:
        self._ends = ends
        self._epochs = epochs
        self._last_cut = last_cut

    def ends(self, segments: Sequence[StreamSegment]) -> Mapping[int, SegmentEnd]:
        return {segment.segment_id: self._end(segment.segment_id) for segment in segments}

    def epochs(self, numbers: Sequence[int]) -> Mapping[int, Epoch]:
        if not self._epochs.keys() >= set(numbers):
            raise NotLoadedError("not all of these epochs are loaded")
        return {number: self._epochs[number] for number in numbers}

    def boundaries(self, targets: Sequence[tuple[int, int]]) -> Sequence[int]:
        raise NotLoadedError("only the stores know where events begin")

    def _end(self, identifier: int) -> SegmentEnd:
        if identifier in self._last_cut:
            return SegmentEnd(self._last_cut[identifier], None)
        if identifier not in self._ends:
            raise NotLoadedError(f"the end of segment {identifier} is not loaded")
        return self._ends[identifier]


class MovedCut(NamedTuple):
    """A cut that was moved forward to the head where it was before it.

    `lost` are the truncated ranges that it has passed, `lost_bytes` their bytes, None if there are too many ranges.
    """

    cut: PlacedCut
    lost: tuple[LostBytes, ...]
    lost_bytes: int | None


def moved_to_head(
    lineage_up_to: Callable[[Stream, PlacedCut], SegmentLineage],
    stream: Stream,
    start: PlacedCut,
    truncation: Truncation,
) -> MovedCut:
    """The cut `start`, a part of which is before the head, where it can be read from.

    Nothing was lost if each part of it was at the end of its segment, and all segments between that and the head are
    empty: for example the cut of a reader that was away while the stream scaled and was truncated.
    """
    readable = later_cut(start, truncation.head)
    rules = BatchRules(opened_max=SEGMENTS_PER_CUT_MAX)
    walked = plan_batch(start.segments, start.cut.offsets, lineage_up_to(stream, readable), rules)
    lost = tuple(
        LostBytes(span.segment.segment_id, span.start_offset, span.end_offset - span.start_offset)
        for span in walked.ranges
        if span.end_offset > span.start_offset
    )
    return MovedCut(readable, lost, walked.length_bytes if walked.reached_end else None)

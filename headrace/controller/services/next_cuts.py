"""The next stream cut of a reader, with the ranges up to it: a batch is planned with one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.api.plans import LostBytes, NextCutView, OnTruncation
from headrace.api.segments import RangesBetween
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.controller.services.segment_service import created_stream, range_between
from headrace.controller.services.stream_ends import StreamEnds
from headrace.metadata.history_records import RECORDS_PER_READ, HistoryRecords
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.stream_records import StreamRecords
from headrace.model.cut_planning import BatchRules, PlannedBatch, SegmentEnd, plan_batch
from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.limits import EPOCHS_BETWEEN_MAX, SEGMENTS_PER_CUT_MAX
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import CutOrder, PlacedCut, StreamCut, compare_cuts, invalid_cut, later_cut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import MetadataStore
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
            found = self._segment_stores.locate_offsets(named)
        except NotFoundError as gone:
            raise UnavailableError(
                f"stream {self._stream.scoped_name} is being truncated or deleted: repeat soon", details=gone.details
            ) from gone
        for (identifier, target), offset in zip(targets, found, strict=True):
            if offset < target and self._named_end is not None and identifier in self._named_end:
                raise invalid_cut(f"'to' is at {self._named_end[identifier]} of segment {identifier}, at {offset} now")
        return found

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
        self._ends |= {identifier: SegmentEnd(one.length, one.replaced_in) for identifier, one in sealed.items()}
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


LOST_SHOWN_MAX = 100
"""Truncated ranges in the details of an error."""


class NextCutService:
    """Called by the route of next cuts; safe for any number of threads. It only reads.

    A plan reads the stream with its truncation, the epochs and the ends of the sealed segments that the batch passes,
    in batches, and makes at most two calls to the segment stores: for the lengths of all active segments, and for the
    event boundaries. While the stream scales there is a third, for the segments that are being sealed.
    """

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores) -> None:
        self._records = StreamRecords(store)
        self._history = self._records.history
        self._cuts = PlacedCuts(self._history)
        self._ends = StreamEnds(self._history, segment_stores)
        self._segment_stores = segment_stores

    def next_cut(
        self,
        scope: str,
        stream: str,
        from_offsets: Mapping[int, int] | None,
        to_offsets: Mapping[int, int] | None = None,
        bytes_max: int | None = None,
        *,
        strict_key_order: bool = False,
        on_truncation: OnTruncation = "fail",
    ) -> NextCutView:
        """The batch after the first cut, of about `bytes_max` bytes, at most up to the second one.

        None means the head, the tail, and everything. With `on_truncation` "skip" both cuts are moved forward to the
        head where they are before it: what is left of the range between them is planned.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_stream_cut" or "stream_recreated"; or `bytes_max` is not positive.
            TruncatedError: bytes after the first cut were truncated, and `on_truncation` is "fail".
            UnavailableError: the stream is being created or scaled; repeat.
        """
        if bytes_max is not None and bytes_max < 1:
            raise InvalidRequestError(f"a batch has at least one byte, not {bytes_max}")
        stored, truncation = self._records.get_with_truncation(scope, stream)
        found = created_stream(stored.stream)
        start = self._ends.head(found, truncation) if from_offsets is None else self._placed(found, from_offsets)
        end = None if to_offsets is None else self._placed(found, to_offsets)
        if end is not None and compare_cuts(end, start) is not CutOrder.EQUAL_OR_AFTER:
            raise invalid_cut("'to' is before 'from'")
        lost: tuple[LostBytes, ...] = ()
        lost_bytes: int | None = 0
        if truncation is not None and compare_cuts(start, truncation.head) is not CutOrder.EQUAL_OR_AFTER:
            readable = later_cut(start, truncation.head)
            lost, lost_bytes = self._lost(found, start, readable)
            if on_truncation == "fail":
                raise _truncated(found, truncation, lost, lost_bytes)
            start, end = readable, None if end is None else later_cut(end, truncation.head)
        batch, left_bytes = self._plan(found, start, end, bytes_max, strict_key_order)
        reached = StreamCut.of(found.scope, found.name, batch.positions)
        ranges = tuple(range_between(found, span) for span in batch.ranges)
        return NextCutView(
            **RangesBetween.between(start.cut, reached, ranges).fields(),
            reached_end=batch.reached_end,
            left_bytes=left_bytes,
            lost=lost,
            lost_bytes=lost_bytes,
        )

    def _placed(self, stream: Stream, offsets: Mapping[int, int]) -> PlacedCut:
        cut = self._cuts.resolved(stream, offsets, self._ends.stored_sizes)
        placed = self._cuts.place(stream, cut)
        self._cuts.check_ends(stream, cut)
        return placed

    def _plan(
        self, stream: Stream, start: PlacedCut, end: PlacedCut | None, bytes_max: int | None, strict_key_order: bool
    ) -> tuple[PlannedBatch, int | None]:
        """The batch, and the bytes that it leaves up to the end, None if that takes a longer walk."""
        lineage = self._lineage(stream, end)
        # `SegmentService.between` must be able to walk from one cut to the other.
        last_epoch = self._cuts.first_epoch(stream, start.cut) + EPOCHS_BETWEEN_MAX - 1
        rules = BatchRules(bytes_max, strict_key_order, SEGMENTS_PER_CUT_MAX, last_epoch)
        batch = plan_batch(start.segments, start.cut.offsets, lineage, rules)
        if batch.reached_end:
            if end is not None and batch.positions != end.cut.offsets:
                raise invalid_cut("'to' is not a cut to which reading from 'from' comes")
            return batch, 0
        try:
            return batch, plan_batch(batch.segments, batch.positions, lineage.loaded(), BatchRules()).length_bytes
        except NotLoadedError:
            return batch, None

    def _lost(self, stream: Stream, start: PlacedCut, readable: PlacedCut) -> tuple[tuple[LostBytes, ...], int | None]:
        """The truncated ranges between two cuts, and their length in bytes, None if there are too many ranges."""
        rules = BatchRules(opened_max=SEGMENTS_PER_CUT_MAX)
        walked = plan_batch(start.segments, start.cut.offsets, self._lineage(stream, readable), rules)
        lost = tuple(
            LostBytes(span.segment.segment_id, span.start_offset, span.end_offset - span.start_offset)
            for span in walked.ranges
            if span.end_offset > span.start_offset
        )
        return lost, walked.length_bytes if walked.reached_end else None

    def _lineage(self, stream: Stream, end: PlacedCut | None) -> SegmentLineage:
        cut = None if end is None else end.cut
        return SegmentLineage(self._history, self._ends, self._segment_stores, stream, cut)


def _truncated(
    stream: Stream, truncation: Truncation, lost: tuple[LostBytes, ...], lost_bytes: int | None
) -> TruncatedError:
    amount = "bytes" if lost_bytes is None else f"{lost_bytes} bytes"
    first = f", the first at {lost[0].offset} of segment {lost[0].segment_id}" if lost else ""
    return TruncatedError(
        f"stream {stream.scoped_name} was truncated beyond this cut: {amount} are lost{first}. Choose a cut that is not"
        " before the head, or skip what is lost",
        details={
            "head": {str(segment): offset for segment, offset in truncation.cut.positions},
            "headText": stream_cut_text(truncation.cut),
            "lost": [each.to_json() for each in lost[:LOST_SHOWN_MAX]],
            "lostBytes": lost_bytes,
        },
    )

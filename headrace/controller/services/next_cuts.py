"""The next stream cut of a reader, with the ranges up to it: a batch is planned with one request."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.plans import LostBytes, NextCutView, OnTruncation
from headrace.api.segments import RangesBetween
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.controller.services.segment_lineage import NotLoadedError, SegmentLineage, moved_to_head
from headrace.controller.services.segment_service import created_stream, range_between
from headrace.controller.services.stream_ends import StreamEnds
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.stream_records import StreamRecords
from headrace.model.cut_planning import BatchRules, PlannedBatch, plan_batch
from headrace.model.errors import InvalidRequestError, TruncatedError
from headrace.model.limits import EPOCHS_BETWEEN_MAX, SEGMENTS_PER_CUT_MAX
from headrace.model.stream_cuts import CutOrder, PlacedCut, StreamCut, compare_cuts, invalid_cut, later_cut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

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
        head where they are before it: what is left of the range between them is planned. They also are if nothing was
        lost: the start is at the ends of segments that were replaced and then truncated.

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
            start, lost, lost_bytes = moved_to_head(self._lineage, found, start, truncation)
            if on_truncation == "fail" and lost_bytes != 0:
                raise _truncated(found, truncation, lost, lost_bytes)
            end = None if end is None else later_cut(end, truncation.head)
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

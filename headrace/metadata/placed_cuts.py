"""Stream cuts against a stream's history: which segments they name, where a walk from them begins, whether they hold.

What it costs depends on the cut alone, not on how many epochs the stream has had.
"""

from __future__ import annotations

from headrace.metadata.history_records import HistoryRecords
from headrace.model.errors import InvalidRequestError, TruncatedError
from headrace.model.limits import EPOCHS_BETWEEN_MAX
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_cut_order import CutOrder, PlacedCut, compare_cuts
from headrace.model.stream_cut_ranges import epochs_between, segments_between
from headrace.model.stream_cuts import StreamCut, invalid_cut
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation


class PlacedCuts:
    """Questions about cuts of one stream; safe for any number of threads."""

    def __init__(self, history: HistoryRecords) -> None:
        self._history = history

    def place(self, stream: Stream, cut: StreamCut) -> PlacedCut:
        """The cut with its segments: a read for each hundred epochs that it names and nobody has asked for.

        Raises:
            InvalidRequestError: code "invalid_stream_cut": it names unknown segments or does not cover the key space.
        """
        if cut.last_epoch > stream.recorded_epoch:
            raise invalid_cut(f"it knows epoch {cut.last_epoch}, but the stream is in epoch {stream.epoch.number}")
        active = stream.epoch.by_id
        numbers = sorted({segment_epoch(identifier) for identifier, _ in cut.positions if identifier not in active})
        epochs = dict(zip(numbers, self._history.epochs(stream, numbers), strict=True))
        segments: list[StreamSegment] = []
        for identifier, _ in cut.positions:
            epoch = epochs.get(segment_epoch(identifier))
            segment = active.get(identifier) or (epoch.by_id.get(identifier) if epoch else None)
            if segment is None:
                raise invalid_cut(f"it names segment {identifier}, which the stream never had")
            segments.append(segment)
        return PlacedCut(cut, tuple(segments))

    def first_epoch(self, stream: Stream, cut: StreamCut) -> int:
        """The newest epoch in which no segment lies behind the cut: where a walk from the cut begins."""
        first = min(cut.last_epoch, stream.epoch.number)
        ended = [identifier for identifier, _ in cut.positions if identifier not in stream.epoch.by_id]
        for sealed in self._history.sealed_segments(stream, ended).values():
            if sealed.replaced_in is not None:
                first = min(first, sealed.replaced_in - 1)
        return first

    def check(self, stream: Stream, cut: StreamCut) -> PlacedCut:
        """The cut with its segments, if it is one of the stream; how far active segments are is not looked at.

        Raises:
            InvalidRequestError: code "invalid_stream_cut", and as `place`: it lies on both sides of a segment, or
                beyond the end of one that is sealed.
        """
        placed = self.place(stream, cut)
        epochs = epochs_between(cut, cut, self.first_epoch(stream, cut))
        if len(epochs) > EPOCHS_BETWEEN_MAX:
            raise InvalidRequestError(
                f"the segments of the cut are {len(epochs)} epochs apart: at most {EPOCHS_BETWEEN_MAX} can be looked at"
            )
        segments_between(cut, cut, self._history.epochs(stream, epochs), lambda _: {})
        self.check_ends(stream, cut)
        return placed

    def check_left(self, stream: Stream, cut: StreamCut, truncation: Truncation | None) -> None:
        """Nothing behind the cut was truncated; without a truncation it is not even placed.

        Raises:
            InvalidRequestError: as `place`.
            TruncatedError: some of it lies before the head.
        """
        if truncation is None or truncation.cut == cut:
            return
        if compare_cuts(self.place(stream, cut), truncation.head) is not CutOrder.EQUAL_OR_AFTER:
            raise TruncatedError(
                f"stream {stream.scoped_name} was truncated behind this cut: choose one that is not before its head",
                details={"head": {str(segment): offset for segment, offset in truncation.cut.positions}},
            )

    def check_ends(self, stream: Stream, cut: StreamCut) -> None:
        """A sealed segment has no bytes beyond its end, and never will; what an active one has is not asked for.

        Raises:
            InvalidRequestError: code "invalid_stream_cut".
        """
        is_sealed = stream.state is StreamState.SEALED
        ended = [one for one, _ in cut.positions if is_sealed or one not in stream.epoch.by_id]
        known = self._history.sealed_segments(stream, ended)
        for identifier, offset in cut.positions:
            if identifier in known and offset > known[identifier].length:
                raise invalid_cut(
                    f"it is at {offset} of segment {identifier}, which ends at {known[identifier].length}"
                )

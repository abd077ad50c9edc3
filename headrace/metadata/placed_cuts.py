"""Stream cuts compared with a stream's history: their segments, the epoch where a walk from them starts, and validity.

The cost depends on the cut alone, not on the number of epochs of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from headrace.metadata.history_records import HistoryRecords
from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError, TruncatedError, UnavailableError
from headrace.model.limits import EPOCHS_BETWEEN_MAX
from headrace.model.log_classes import first_number_of_class
from headrace.model.segments import StreamSegment, covers_key_space_once, segment_epoch, segment_number
from headrace.model.stream_cut_ranges import check_checkpoint, epochs_between, segments_between
from headrace.model.stream_cuts import (
    END_OF_SEGMENT,
    CutOrder,
    PlacedCut,
    StreamCut,
    compare_positions,
    invalid_cut,
    segments_read_to_end,
)
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation

SealedLengths = Callable[[Stream, Sequence[int]], Mapping[int, int]]
"""Returns the lengths in bytes of those of the segments that are sealed, by segment id."""


class PlacedCuts:
    """Looks up and validates cuts; safe for any number of threads.

    Except for `resolved`, the methods expect cuts without END_OF_SEGMENT.
    """

    def __init__(self, history: HistoryRecords) -> None:
        self._history = history

    def resolved(self, stream: Stream, offsets: Mapping[int, int], lengths: SealedLengths | None = None) -> StreamCut:
        """The cut at these offsets, in which each END_OF_SEGMENT is replaced by the length of the segment.

        A segment that the readers have not reached is replaced by the ends of its predecessors. `lengths` is called
        for segments whose sealing is not recorded. Without END_OF_SEGMENT nothing is read.

        Raises:
            InvalidRequestError: code "invalid_stream_cut": it names unknown segments, or the end of one that is not
                sealed. Code "stream_recreated": it is a cut of a deleted stream of this name.
            UnavailableError: the segment is being sealed, and its length is not known yet.
        """
        check_incarnation(stream, offsets)
        if END_OF_SEGMENT not in offsets.values():
            return StreamCut.of(stream.scope, stream.name, offsets)
        ended = segments_read_to_end(
            offsets, self._segments(stream, offsets), lambda segment: self._before(stream, segment)
        )
        identifiers = [segment.segment_id for segment in ended]
        sealed = self._history.sealed_segments(stream, identifiers)
        ends = {identifier: end.length for identifier, end in sealed.items()}
        missing = [identifier for identifier in identifiers if identifier not in ends]
        if missing and lengths is not None:
            ends |= lengths(stream, missing)
        for identifier in missing:
            if identifier not in ends:
                self._refuse_open_end(stream, identifier)
        reached = {identifier: offset for identifier, offset in offsets.items() if offset != END_OF_SEGMENT}
        return StreamCut.of(stream.scope, stream.name, reached | ends)

    def place(self, stream: Stream, cut: StreamCut) -> PlacedCut:
        """The cut with its segments; one read for each hundred epochs that it names and that are not cached.

        Raises:
            InvalidRequestError: code "invalid_stream_cut": it names unknown segments or does not cover the key space.
        """
        return PlacedCut(cut, tuple(self._segments(stream, [identifier for identifier, _ in cut.positions])))

    def first_epoch(self, stream: Stream, cut: StreamCut) -> int:
        """The newest epoch without a segment that is entirely after the cut: a walk from the cut starts there."""
        first = min(cut.last_epoch, stream.epoch.number)
        ended = [identifier for identifier, _ in cut.positions if identifier not in stream.epoch.by_id]
        for sealed in self._history.sealed_segments(stream, ended).values():
            if sealed.replaced_in is not None:
                first = min(first, sealed.replaced_in - 1)
        return first

    def check(self, stream: Stream, cut: StreamCut) -> PlacedCut:
        """The cut with its segments, if it is a cut of the stream. The lengths of active segments are not checked.

        Raises:
            InvalidRequestError: code "invalid_stream_cut", as `place`, or because the cut is on both sides of a
                segment, or beyond the end of a sealed segment.
        """
        placed = self.place(stream, cut)
        epochs = self._epochs(stream, epochs_between(cut, cut, self.first_epoch(stream, cut)))
        segments_between(cut, cut, epochs, lambda _: {})
        self.check_ends(stream, cut)
        return placed

    def check_checkpoint(self, stream: Stream, cut: StreamCut, end: StreamCut | None) -> None:
        """As `check`, but the cut may leave out parts of the key space that readers have finished up to `end`.

        None as `end` is that of the stream. The segments of `end` are known.
        """
        if covers_key_space_once([segment.key_range for segment in self._segments(stream, cut.offsets)]):
            self.check(stream, cut)
            return
        ends = [cut] if end is None else [cut, end]
        first = min(self.first_epoch(stream, end) for end in ends)
        last = stream.epoch.number if end is None else max(end.last_epoch for end in ends)
        check_checkpoint(cut, end, self._epochs(stream, range(first, last + 1)))
        self.check_ends(stream, cut)

    def check_left(self, stream: Stream, cut: StreamCut, truncation: Truncation | None) -> None:
        """Check that no byte after the cut was truncated. It reads nothing if the stream was never truncated.

        Raises:
            InvalidRequestError: code "invalid_stream_cut": it names unknown segments.
            TruncatedError: a part of the cut is before the head of the stream.
        """
        if truncation is None or truncation.cut == cut:
            return
        offsets = cut.offsets
        order = compare_positions(self._segments(stream, offsets), offsets, truncation.head)
        if order is not CutOrder.EQUAL_OR_AFTER:
            raise TruncatedError(
                f"stream {stream.scoped_name} was truncated beyond this cut: choose one that is not before its head",
                details={"head": {str(segment): offset for segment, offset in truncation.cut.positions}},
            )

    def check_ends(self, stream: Stream, cut: StreamCut) -> None:
        """Check that the cut is not beyond the end of a sealed segment. Active segments are not checked: they grow.

        Raises:
            InvalidRequestError: code "invalid_stream_cut".
        """
        is_sealed = stream.state.is_sealed
        ended = [identifier for identifier, _ in cut.positions if is_sealed or identifier not in stream.epoch.by_id]
        known = self._history.sealed_segments(stream, ended)
        for identifier, offset in cut.positions:
            if identifier in known and offset > known[identifier].length:
                raise invalid_cut(
                    f"it is at {offset} of segment {identifier}, which ends at {known[identifier].length}"
                )

    def _epochs(self, stream: Stream, numbers: range) -> Iterator[Epoch]:
        """The epochs of a walk; raises InvalidRequestError if there are too many."""
        if len(numbers) > EPOCHS_BETWEEN_MAX:
            raise InvalidRequestError(
                f"the segments of the cut are {len(numbers)} epochs apart: at most {EPOCHS_BETWEEN_MAX} are allowed"
            )
        return self._history.epochs(stream, numbers)

    def _segments(self, stream: Stream, identifiers: Iterable[int]) -> list[StreamSegment]:
        """The segments in the order of their ids; raises InvalidRequestError as `place` does."""
        wanted = sorted(identifiers)
        if wanted[0] < 0:
            raise invalid_cut("it has a negative segment id")
        newest = max(map(segment_epoch, wanted))
        if newest > stream.recorded_epoch:
            raise invalid_cut(f"it names epoch {newest}, but the stream is in epoch {stream.epoch.number}")
        active = stream.epoch.by_id
        numbers = sorted({segment_epoch(identifier) for identifier in wanted if identifier not in active})
        epochs = dict(zip(numbers, self._history.epochs(stream, numbers), strict=True))
        segments: list[StreamSegment] = []
        for identifier in wanted:
            epoch = epochs.get(segment_epoch(identifier))
            segment = active.get(identifier) or (epoch.by_id.get(identifier) if epoch else None)
            if segment is None:
                raise invalid_cut(f"it names segment {identifier}, which the stream never had")
            segments.append(segment)
        return segments

    def _before(self, stream: Stream, segment: StreamSegment) -> Sequence[StreamSegment]:
        return self._history.epoch(stream, segment.epoch).predecessors_of(segment)

    def _refuse_open_end(self, stream: Stream, identifier: int) -> None:
        """Raises the error for the end of a segment whose length is not known."""
        coming = self._history.epochs(stream, range(stream.epoch.number + 1, stream.recorded_epoch + 1))
        ending = not stream.state.takes_events
        if ending or any(identifier not in epoch.by_id for epoch in coming):
            raise UnavailableError(f"segment {identifier} of stream {stream.scoped_name} is being sealed: repeat soon")
        raise invalid_cut(
            f"it is at -1, the end of segment {identifier}, which is not sealed: name an offset in this segment"
        )


def check_incarnation(stream: Stream, identifiers: Iterable[int]) -> None:
    """Check that no segment was part of a deleted stream of this name: numbers grow from each of them to the next.

    Raises:
        InvalidRequestError: code "stream_recreated".
    """
    first = stream.first_segment_number
    former = next(
        (identifier for identifier in identifiers if identifier >= 0 and segment_number(identifier) < first), None
    )
    if former is not None and first > first_number_of_class(stream.configuration.log_class, 0, 1):
        raise InvalidRequestError(
            f"stream {stream.scoped_name} was deleted and created again: segment {former} was part of the deleted"
            " stream, whose events are gone. Read the new stream from its head",
            details={"segmentId": former, "firstSegmentNumber": first},
            code="stream_recreated",
        )

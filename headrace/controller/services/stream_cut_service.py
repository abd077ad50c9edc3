"""Checks and measures stream cuts: whether one is valid, whether it has been reached, and how far two are apart."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.controller.services.segment_service import SegmentService
from headrace.controller.services.stream_ends import WrittenCuts
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import HeadraceError, InvalidRequestError, TruncatedError, UnavailableError
from headrace.model.stream_cuts import StreamCut
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores


class StreamCutService:
    """Called by the stream cut routes of the API; safe for any number of threads.

    Every method raises NotFoundError if there is no such stream. It raises InvalidRequestError, code
    "invalid_stream_cut", for a malformed cut: no or too many segments, or negative numbers. An offset of -1 is the end
    of a sealed segment.
    """

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores, segments: SegmentService) -> None:
        self._records = StreamRecords(store)
        self._cuts = PlacedCuts(self._records.history)
        self._written = WrittenCuts(segment_stores)
        self._segments = segments

    def problem(self, scope: str, stream: str, offsets: Mapping[int, int]) -> HeadraceError | None:
        """Why reading can neither start nor end at this cut; None if it belongs to the stream, is left and is written.

        Raises UnavailableError if a segment store could not be reached.
        """
        StreamCut.of(scope, stream, offsets)  # Refuses a malformed cut before any read.
        stored, truncation = self._records.get_with_truncation(scope, stream)
        if not stored.stream.state.is_readable:
            return UnavailableError(f"stream {stored.stream.scoped_name} is being created", code="stream_not_ready")
        try:
            cut = self._cuts.resolved(stored.stream, offsets)
            self._cuts.check(stored.stream, cut)
            self._written.check(stored.stream, cut)  # first: a reader may skip what was truncated, but not this
            self._segments.readable_from(stored.stream, cut, truncation)
        except (InvalidRequestError, TruncatedError) as error:
            return error
        return None

    def is_valid(self, scope: str, stream: str, offsets: Mapping[int, int]) -> bool:
        """Whether reading can start or end at this cut, see `problem`."""
        return self.problem(scope, stream, offsets) is None

    def check_reached(self, scope: str, stream: str, offsets: Mapping[int, int]) -> None:
        """Reject a cut that is beyond the written bytes of an active segment; costs one call to the segment stores.

        Raises:
            InvalidRequestError: code "invalid_stream_cut".
            UnavailableError: the stream is being created.
        """
        StreamCut.of(scope, stream, offsets)
        current = self._records.get(scope, stream).stream
        if not current.state.is_readable:
            raise UnavailableError(f"stream {current.scoped_name} is being created", code="stream_not_ready")
        self._written.check(current, self._cuts.resolved(current, offsets))

    def distance_bytes(
        self, scope: str, stream: str, from_offsets: Mapping[int, int] | None, to_offsets: Mapping[int, int] | None
    ) -> int:
        """The number of bytes between two cuts; None is the head, or the tail. Raises as `SegmentService.between`."""
        between = self._segments.between(scope, stream, from_offsets, to_offsets)
        return sum(span.end_offset - span.start_offset for span in between.ranges)

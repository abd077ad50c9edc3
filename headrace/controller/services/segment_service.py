"""Segments of streams: at a point of the stream, successors and predecessors, endpoints, and stream cuts.

The service only reads, except that a writer's question for what follows a segment may begin a scale, see
`sealed_active_segments`. The records of past epochs never change and are cached, so a warm process needs one batch
read: the current record shows that the stream still exists, and the truncation record where it starts. For a position
before the start the answer is an error, or the segments at the head instead.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from headrace.api.segments import (
    EpochSegments,
    RangeBetween,
    RangesBetween,
    SegmentEndpoint,
    SegmentView,
    StartedSegment,
    Successor,
    Successors,
)
from headrace.api.trust import TrustView
from headrace.controller.acceptance import Acceptance
from headrace.controller.services.endpoints import SegmentEndpoints
from headrace.controller.services.segment_lineage import SegmentLineage, moved_to_head
from headrace.controller.services.stream_ends import StreamEnds, WrittenCuts
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.trust import find_trust
from headrace.model.epochs import Epoch
from headrace.model.errors import ConflictError, InvalidRequestError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.external_access import Network
from headrace.model.limits import EPOCHS_BETWEEN_MAX
from headrace.model.names import segment_name, stream_of_mark_stream
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_cut_ranges import SegmentRange, epochs_between, segments_between
from headrace.model.stream_cuts import CutOrder, PlacedCut, StreamCut, compare_cuts, invalid_cut, later_cut
from headrace.model.streams import Stream, may_have_sealed_by_clients
from headrace.model.truncation import Truncation, segments_left, superimposed
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.ports.segment_stores import SegmentStores

# Active segments that their stores have sealed although no operation did: they are replaced.
#
# A client with a token to manage can seal a segment over the wire. Writers then ask for its successors, and so do
# readers at its end. Without this they would ask for ever, because the controller takes the segment for an active one.
# A scale replaces it by one of the same key range, as if an operator had asked for it.

_log = logging.getLogger(__name__)


class SealedActiveSegments:
    """Safe for any number of threads and processes: of several that find a segment, one replaces it."""

    def __init__(self, segment_stores: SegmentStores, acceptance: Callable[[], Acceptance]) -> None:
        self._segment_stores = segment_stores
        self._acceptance = acceptance

    def replace_if_sealed(self, stored: StoredStream, identifier: int) -> None:
        """Accept a scale that replaces a segment that is active in `stored`, if its store has sealed it.

        One request to the store. It is not sent while an operation runs that may itself seal the segment. The caller
        asks again in any case, so that a store that is away and a stream that has just changed are no errors.
        """
        stream = stored.stream
        if not may_have_sealed_by_clients(stream):
            return
        name = segment_name(stream.scope, stream.name, identifier)
        with suppress(NotFoundError, UnavailableError):
            if self._segment_stores.segment_info(name).is_sealed:
                self._replace(stored, identifier, name)

    def _replace(self, stored: StoredStream, identifier: int, name: str) -> None:
        from headrace.controller.operations import scale_stream

        with suppress(ConflictError, WriteConflictError):
            scale_stream.accept_replacement(self._acceptance(), stored, identifier)
            _log.warning("segment %s was sealed by a client: a scale replaces it", name)


class SegmentService:
    """Called by the segment routes of the API; safe for any number of threads.

    Every method except `endpoint` raises NotFoundError if there is no such stream, and UnavailableError while it is
    being created.
    """

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        acceptance: Callable[[], Acceptance],
        container_count: int,
        s3_containers: int = 0,
    ) -> None:
        self._store = store
        self._segment_stores = segment_stores
        self._records = StreamRecords(store)
        self._history = self._records.history
        self._cuts = PlacedCuts(self._history)
        self._ends = StreamEnds(self._history, segment_stores)
        self._written = WrittenCuts(segment_stores)
        self._sealed = SealedActiveSegments(segment_stores, acceptance)
        self._endpoints = SegmentEndpoints(store, container_count, s3_containers)

    def segments_at_head(self, scope: str, stream: str) -> EpochSegments:
        """The oldest segments that can be read, each with the offset at which it starts."""
        current, truncation = self._readable_with_truncation(scope, stream)
        if truncation is None:
            segments, offsets, epoch = self._history.epoch(current, 0).segments, dict[int, int](), 0
        else:
            segments, offsets, epoch = truncation.head.segments, truncation.cut.offsets, truncation.cut.last_epoch
        starts = tuple(
            StartedSegment.at(segment, _name(current, segment), offsets.get(segment.segment_id, 0))
            for segment in segments
        )
        return EpochSegments(epoch, starts, current.state.is_sealed)

    def segments_at_tail(self, scope: str, stream: str) -> EpochSegments:
        """The segments that accept events; none if the stream is sealed."""
        current = self._readable(scope, stream)
        if current.state.is_sealed:
            return EpochSegments(current.epoch.number, (), sealed=True)
        return _segments_of(current, current.epoch)

    def segments_at_time(self, scope: str, stream: str, time_ms: int) -> EpochSegments:
        """The segments that were active at a time, in milliseconds since 1970.

        For a time before the creation of the stream these are its first segments. Truncated segments are replaced by
        those at the head.

        Raises:
            InvalidRequestError: the time is negative.
        """
        if time_ms < 0:
            raise InvalidRequestError(f"{time_ms} is not a time in milliseconds since 1970")
        current, truncation = self._readable_with_truncation(scope, stream)
        return _segments_of(current, self._history.epoch_at(current, time_ms), truncation)

    def segments_of_epoch(self, scope: str, stream: str, epoch: int, *, as_recorded: bool = False) -> EpochSegments:
        """The segments of a recorded epoch; truncated segments are replaced by those at the head.

        While the stream scales, epochs after the active one are recorded, and readers may have reached their segments.
        With `as_recorded` nothing is replaced, as Pravega's clients expect it.

        Raises:
            NotFoundError: there is no epoch of that number.
            TruncatedError: all segments of the epoch are truncated, and not `as_recorded`.
        """
        current, truncation = self._readable_with_truncation(scope, stream)
        if not 0 <= epoch <= current.recorded_epoch:
            raise _no_such_epoch(current, epoch)
        wanted = self._history.epoch(current, epoch)
        if as_recorded:
            return _segments_of(current, wanted, None)
        if not segments_left(wanted.segments, truncation):
            raise TruncatedError(
                f"epoch {epoch} of stream {current.scoped_name} is truncated: read from the segments at the head",
                details={"epoch": epoch},
            )
        return _segments_of(current, wanted, truncation)

    def successors(self, scope: str, stream: str, segment_id: int, *, as_recorded: bool = False) -> Successors:
        """The successors of a segment; known as soon as a scale may seal the segment.

        With `as_recorded` a writer or a reader asks that has found the segment sealed. If it is active for the
        controller, a client may have sealed it: then a scale replaces it, and the caller asks again.

        Raises:
            NotFoundError: the stream never had the segment.
            TruncatedError: a truncation has deleted it, and not `as_recorded`.
        """
        stored, truncation = self._stored_with_truncation(scope, stream)
        current = stored.stream
        following = self._epoch_after(current, segment_id)
        if following is None:
            if as_recorded:
                self._sealed.replace_if_sealed(stored, segment_id)
            return Successors((), current.state.is_sealed)
        segment = following.replaced_segment(segment_id)
        if not as_recorded:
            _check_left(current, segment, truncation)
        followers = following.successors_of(segment)
        gone = as_recorded and not segments_left([segment], truncation)
        ended = self._history.sealed_segments(current, [segment_id]) if gone else {}
        return Successors(
            tuple(
                Successor.after(follower, _name(current, follower), _ids(following.predecessors_of(follower)))
                for follower in followers
            ),
            sealed=False,
            truncated_length=ended[segment_id].length if segment_id in ended else None,
        )

    def predecessors(self, scope: str, stream: str, segment_id: int) -> tuple[SegmentView, ...]:
        """The predecessors of a segment that can still be read; empty for a segment of the first epoch.

        Raises:
            NotFoundError: the stream never had the segment.
            TruncatedError: a truncation has deleted it.
        """
        current, truncation = self._readable_with_truncation(scope, stream)
        segment = self._segment(current, segment_id)
        _check_left(current, segment, truncation)
        before = self._history.epoch(current, segment.epoch).predecessors_of(segment)
        return tuple(SegmentView.of(each, _name(current, each)) for each in segments_left(before, truncation))

    def endpoint(self, scope: str, stream: str, segment_id: int, network: Network = Network.VPC) -> SegmentEndpoint:
        """The segment store that serves a segment; any valid id has an answer, because the stream is not read.

        `network` is that of the client.

        Raises:
            UnavailableError: no segment store has claimed the container yet, or it has no address in the network yet.
        """
        return self._endpoints.endpoint(scope, stream, segment_id, network)

    def trust(self) -> TrustView:
        """The authorities that clients of the segment stores trust; none in a deployment without TLS."""
        stored = find_trust(self._store)
        return TrustView(() if stored is None else stored.bundle.certificates)

    def endpoint_of_known(
        self, scope: str, stream: str, segment_id: int, network: Network = Network.VPC
    ) -> SegmentEndpoint:
        """As `endpoint`, for a segment that the stream has or had; the mark segment of a stream is one, too.

        Raises:
            NotFoundError: there is no such stream, or it never had the segment.
            UnavailableError: as `endpoint`.
        """
        marked = stream_of_mark_stream(stream)
        current = self._records.get(scope, marked or stream).stream
        if marked is None:
            self._segment(current, segment_id)
        elif segment_id != 0:
            raise _no_such_segment(current, segment_id)
        return self.endpoint(scope, stream, segment_id, network)

    def stream_cut(self, scope: str, stream: str, at: Literal["head", "tail"]) -> StreamCut:
        """The stream cut at the head or the tail of the stream."""
        if at == "head":
            return self._ends.head(*self._readable_with_truncation(scope, stream)).cut
        return self._ends.tail(self._readable(scope, stream))

    def readable_from(self, stream: Stream, cut: StreamCut, truncation: Truncation | None) -> StreamCut:
        """The cut, moved forward to the head if nothing was truncated between the two.

        Raises:
            InvalidRequestError: code "invalid_stream_cut": it names unknown segments.
            TruncatedError: bytes after the cut were truncated.
        """
        try:
            self._cuts.check_left(stream, cut, truncation)
        except TruncatedError as truncated:
            with suppress(InvalidRequestError):  # a checkpoint may leave out parts of the key space
                placed = self._cuts.place(stream, cut)
                if truncation is not None:
                    moved = moved_to_head(self._lineage, stream, placed, truncation)
                    if moved.lost_bytes == 0:
                        return moved.cut.cut
            raise truncated from None
        return cut

    def _lineage(self, stream: Stream, end: PlacedCut) -> SegmentLineage:
        return SegmentLineage(self._history, self._ends, self._segment_stores, stream, end.cut)

    def between(
        self,
        scope: str,
        stream: str,
        from_offsets: Mapping[int, int] | None,
        to_offsets: Mapping[int, int] | None,
        *,
        from_checkpoint: bool = False,
    ) -> RangesBetween:
        """The byte ranges between two cuts (offset by segment id); None means the head, or the tail.

        An offset of -1 is the end of a sealed segment; the cuts in the answer have its length instead. A first cut
        behind which nothing but empty or finished segments was truncated begins at the head. With
        `from_checkpoint` the first cut may leave out parts of the key space that a reader group has finished
        (`stream_cut_ranges`): their segments must be sealed, or end at the second cut.

        Raises:
            InvalidRequestError: code "invalid_stream_cut", see `stream_cut_ranges.segments_between`; or more than
                EPOCHS_BETWEEN_MAX epochs are between the cuts.
            TruncatedError: some bytes after the first cut are truncated.
        """
        current, truncation = self._readable_with_truncation(scope, stream)
        named: StreamCut | None = None
        if from_offsets is None:
            from_cut = self._ends.head(current, truncation).cut
            first_epoch = truncation.first_epoch if truncation else 0
        else:
            named = self._cuts.resolved(current, from_offsets, self._ends.stored_sizes)
            from_cut = self.readable_from(current, named, truncation)
            first_epoch = self._cuts.first_epoch(current, from_cut)
        if to_offsets is None:
            to_cut = self._ends.tail(current)
        else:
            to_cut = self._cuts.resolved(current, to_offsets, self._ends.stored_sizes)
            if truncation is not None and named is not None and from_cut != named:
                to_cut = self._moved_end(current, named, to_cut, truncation)
        if from_checkpoint and to_offsets is not None:
            first_epoch = min(first_epoch, self._cuts.first_epoch(current, to_cut))
        epochs = epochs_between(from_cut, to_cut, first_epoch)
        if epochs.stop - 1 > current.recorded_epoch:
            raise invalid_cut(f"it names epoch {epochs.stop - 1}, but the stream is in epoch {current.epoch.number}")
        if len(epochs) > EPOCHS_BETWEEN_MAX:
            raise InvalidRequestError(
                f"the cuts are {len(epochs)} epochs apart: one request covers at most {EPOCHS_BETWEEN_MAX}"
            )
        check = functools.partial(self._check_finished, current, bounded=to_offsets is not None)
        ranges = segments_between(
            from_cut,
            to_cut,
            self._history.epochs(current, epochs),
            lambda ids: self._ends.sealed_sizes(current, ids),
            check if from_checkpoint else None,
        )
        if to_offsets is not None:
            self._cuts.check_ends(current, to_cut)
            self._written.check(current, to_cut)  # the first cut is not after it
        return RangesBetween.between(from_cut, to_cut, tuple(range_between(current, span) for span in ranges))

    def _moved_end(self, stream: Stream, start: StreamCut, end: StreamCut, truncation: Truncation) -> StreamCut:
        """The end of a range whose start was moved to the head, moved there in the same way."""
        placed = self._cuts.place(stream, end)
        if compare_cuts(placed, self._cuts.place(stream, start)) is not CutOrder.EQUAL_OR_AFTER:
            raise invalid_cut("'to' is before 'from'")
        return later_cut(placed, truncation.head).cut

    def _readable(self, scope: str, stream: str) -> Stream:
        return created_stream(self._records.get(scope, stream).stream)

    def _readable_with_truncation(self, scope: str, stream: str) -> tuple[Stream, Truncation | None]:
        stored, truncation = self._stored_with_truncation(scope, stream)
        return stored.stream, truncation

    def _stored_with_truncation(self, scope: str, stream: str) -> tuple[StoredStream, Truncation | None]:
        stored, truncation = self._records.get_with_truncation(scope, stream)
        created_stream(stored.stream)
        return stored, truncation

    def _check_finished(self, stream: Stream, left_out: Sequence[int], *, bounded: bool) -> None:
        """Check that readers can have finished the segments at the second cut that their checkpoint leaves out."""
        if bounded or stream.state.is_sealed:
            return
        sealed = self._ends.stored_sizes(stream, left_out)
        unread = next((identifier for identifier in left_out if identifier not in sealed), None)
        if unread is not None:
            raise invalid_cut(f"'from' leaves out segment {unread}, which is not sealed: the cut must name it")

    def _epoch_after(self, stream: Stream, identifier: int) -> Epoch | None:
        """The epoch that replaced a segment; None if the segment has not been replaced."""
        newest = stream.epoch
        for coming in self._ends.coming(stream):
            if identifier in newest.by_id and identifier not in coming.by_id:
                return coming
            newest = coming
        if identifier in newest.by_id:
            return None
        sealed = self._history.sealed_segments(stream, [identifier]).get(identifier)
        if sealed is None or sealed.replaced_in is None:
            raise _no_such_segment(stream, identifier)
        return self._history.epoch(stream, sealed.replaced_in)

    def _segment(self, stream: Stream, identifier: int) -> StreamSegment:
        """A segment that the stream has or had, from the epoch that its id names."""
        number = segment_epoch(identifier)
        if not 0 <= number <= stream.recorded_epoch:
            raise _no_such_segment(stream, identifier)
        segment = self._history.epoch(stream, number).by_id.get(identifier)
        if segment is None:
            raise _no_such_segment(stream, identifier)
        return segment


def created_stream(stream: Stream) -> Stream:
    """Returns the stream; raises UnavailableError, code "stream_not_ready", while it is being created."""
    if not stream.state.is_readable:
        raise UnavailableError(
            f"stream {stream.scoped_name} is being created: repeat until it is ACTIVE", code="stream_not_ready"
        )
    return stream


def _segments_of(stream: Stream, epoch: Epoch, truncation: Truncation | None = None) -> EpochSegments:
    starts = superimposed(epoch.segments, truncation) if truncation else dict.fromkeys(epoch.segments)
    started = tuple(StartedSegment.at(segment, _name(stream, segment), start) for segment, start in starts.items())
    return EpochSegments(epoch.number, started, stream.state.is_sealed)


def _check_left(stream: Stream, segment: StreamSegment, truncation: Truncation | None) -> None:
    if not segments_left([segment], truncation):
        raise TruncatedError(
            f"segment {segment.segment_id} of stream {stream.scoped_name} is truncated: continue from the head",
            details={"segmentId": segment.segment_id},
        )


def range_between(stream: Stream, span: SegmentRange) -> RangeBetween:
    """The range as the API returns it."""
    segment = span.segment
    return RangeBetween(
        segment.segment_id,
        segment.key_range.low,
        segment.key_range.high,
        _name(stream, segment),
        span.start_offset,
        span.end_offset,
        span.predecessors,
        span.successors,
    )


def _name(stream: Stream, segment: StreamSegment) -> str:
    return segment_name(stream.scope, stream.name, segment.segment_id)


def _ids(segments: Sequence[StreamSegment]) -> tuple[int, ...]:
    return tuple(segment.segment_id for segment in segments)


def _no_such_epoch(stream: Stream, number: int) -> NotFoundError:
    return NotFoundError(
        f"stream {stream.scoped_name} has no epoch {number}: the current one is {stream.epoch.number}",
        details={"epoch": number, "currentEpoch": stream.epoch.number},
    )


def _no_such_segment(stream: Stream, identifier: int) -> NotFoundError:
    return NotFoundError(
        f"stream {stream.scoped_name} never had segment {identifier}", details={"segmentId": identifier}
    )

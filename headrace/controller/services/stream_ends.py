"""Where a stream begins and ends now, and the lengths of its sealed segments: from records, and from the stores."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.stream import no_such_stream
from headrace.model.epochs import Epoch, front_of_epochs
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation, very_beginning
from headrace.ports.segment_stores import SegmentInfo, SegmentStores


class StreamEnds:
    """Safe for any number of threads."""

    def __init__(self, history: HistoryRecords, segment_stores: SegmentStores) -> None:
        self._history = history
        self._segment_stores = segment_stores

    def head(self, stream: Stream, truncation: Truncation | None) -> PlacedCut:
        """The cut at which reading starts."""
        if truncation is not None:
            return truncation.head
        first = self._history.epoch(stream, 0)
        return PlacedCut(very_beginning(stream.scope, stream.name, first), first.segments)

    def tail(self, stream: Stream) -> StreamCut:
        """The cut after the last byte that is written now; one call to the segment stores, or none if it is sealed."""
        if stream.state.is_sealed:
            identifiers = [segment.segment_id for segment in stream.epoch.segments]
            return StreamCut.of(stream.scope, stream.name, self.sealed_sizes(stream, identifiers))
        front = asked = stream.epoch.segments
        coming = self.coming(stream)
        if coming:
            asked = (*stream.epoch.segments, *coming[-1].created)
        infos = dict(zip(asked, self._infos(stream, [segment.segment_id for segment in asked]), strict=True))
        if coming:
            front = front_of_epochs(coming, lambda segment: infos[segment].is_sealed)
        return StreamCut.of(stream.scope, stream.name, {segment.segment_id: infos[segment].length for segment in front})

    def newest_segments(self, stream: Stream) -> tuple[StreamSegment, ...]:
        """All segments that `tail` may name."""
        return (*stream.epoch.segments, *(one for epoch in self.coming(stream) for one in epoch.created))

    def sealed_sizes(self, stream: Stream, identifiers: Sequence[int]) -> dict[int, int]:
        """Length in bytes by segment id. A size that is not in the metadata yet is read from the segment's store."""
        sealed = self._history.sealed_segments(stream, identifiers)
        sizes = {identifier: one.length for identifier, one in sealed.items()}
        return sizes | self.unrecorded_sizes(stream, [one for one in identifiers if one not in sizes])

    def unrecorded_sizes(self, stream: Stream, identifiers: Sequence[int]) -> dict[int, int]:
        """Length in bytes by segment id of segments that a running operation seals; read from their stores.

        Raises:
            UnavailableError: a segment is not sealed yet.
        """
        sizes = self.stored_sizes(stream, identifiers) if identifiers else {}
        unsealed = next((identifier for identifier in identifiers if identifier not in sizes), None)
        if unsealed is not None:
            name = segment_name(stream.scope, stream.name, unsealed)
            raise UnavailableError(f"segment {name} is being sealed: repeat soon")
        return sizes

    def stored_sizes(self, stream: Stream, identifiers: Sequence[int]) -> dict[int, int]:
        """Length in bytes by id of those of the segments that their stores have sealed."""
        infos = zip(identifiers, self._infos(stream, identifiers), strict=True)
        return {identifier: info.length for identifier, info in infos if info.is_sealed}

    def _infos(self, stream: Stream, identifiers: Sequence[int]) -> list[SegmentInfo]:
        """Raises NotFoundError if a store does not have one of them any more: the stream is being deleted."""
        names = [segment_name(stream.scope, stream.name, identifier) for identifier in identifiers]
        try:
            return self._segment_stores.segment_infos(names)
        except NotFoundError as error:
            gone = no_such_stream(stream.scope, stream.name)
            raise NotFoundError(f"{gone.message} any more ({error.message})", details=gone.details) from error

    def coming(self, stream: Stream) -> list[Epoch]:
        """The recorded epochs after the active one, in order: a running scale or commit moves the stream to them."""
        return list(self._history.epochs(stream, range(stream.epoch.number + 1, stream.recorded_epoch + 1)))

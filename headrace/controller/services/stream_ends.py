"""Where streams and segments begin and end now, and whether a stream cut is within the bytes that are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.stream import no_such_stream
from headrace.model.epochs import Epoch, front_of_epochs
from headrace.model.errors import NotFoundError, TruncatedError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_cuts import PlacedCut, StreamCut, invalid_cut
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation, very_beginning
from headrace.ports.segment_stores import SegmentInfo, SegmentStores

# Where a stream begins and ends now, and the lengths of its sealed segments: from records, and from the stores.


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
        return (*stream.epoch.segments, *(each for epoch in self.coming(stream) for each in epoch.created))

    def sealed_sizes(self, stream: Stream, identifiers: Sequence[int]) -> dict[int, int]:
        """Length in bytes by segment id. A size that is not in the metadata yet is read from the segment's store."""
        sealed = self._history.sealed_segments(stream, identifiers)
        sizes = {identifier: end.length for identifier, end in sealed.items()}
        return sizes | self.unrecorded_sizes(
            stream, [identifier for identifier in identifiers if identifier not in sizes]
        )

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


# Where segments start now: what tier 2 has before that was truncated, and is not handed out any more.
#
# Objects stay for a while after a truncation, and longer if they hold bytes that are left. Only the segment's store
# knows the start: byte streams and revisioned streams are truncated there, without the controller.


class SegmentStarts:
    """Safe for any number of threads."""

    def __init__(self, segment_stores: SegmentStores) -> None:
        self._segment_stores = segment_stores

    def check(self, offsets: Mapping[str, int]) -> None:
        """Refuses offsets before the start of the segments with these names; one call to the segment stores.

        Raises:
            TruncatedError: the bytes at an offset were truncated; `details` tells where the segment starts.
            NotFoundError: a segment was deleted.
            UnavailableError: a segment store could not be reached.
        """
        for info in self._segment_stores.segment_infos(list(offsets)) if offsets else ():
            if offsets[info.name] < info.start_offset:
                raise truncated_before(info.name, offsets[info.name], info.start_offset)


def truncated_before(name: str, offset: int, start: int) -> TruncatedError:
    """The error for bytes at `offset` of a segment that starts at `start`."""
    return TruncatedError(
        f"segment {name} starts at {start}: the bytes at {offset} were truncated",
        details={"segment": name, "offset": offset, "startOffset": start},
    )


# Whether a stream cut is within the bytes that are written: the part of its validity that only the stores know.


class WrittenCuts:
    """Safe for any number of threads."""

    def __init__(self, segment_stores: SegmentStores) -> None:
        self._segment_stores = segment_stores

    def check(self, stream: Stream, cut: StreamCut) -> None:
        """Refuses a cut beyond the tail: a reader that starts there would skip what is written up to it later.

        The cut is one of the stream. It costs one call to the segment stores, or none if the cut is only at the
        beginnings of active segments. Sealed segments are not looked at, see `PlacedCuts.check_ends`.

        Raises:
            InvalidRequestError: code "invalid_stream_cut".
            UnavailableError: a segment store could not be reached.
        """
        if stream.state.is_sealed:
            return
        growing = [identifier for identifier, offset in cut.positions if offset > 0 and _may_grow(stream, identifier)]
        names = [segment_name(stream.scope, stream.name, identifier) for identifier in growing]
        infos = self._segment_stores.segment_infos(names) if names else []
        offsets = cut.offsets
        for identifier, info in zip(growing, infos, strict=True):
            if offsets[identifier] > info.length:
                raise invalid_cut(
                    f"it is at {offsets[identifier]} of segment {identifier}, which has {info.length} bytes"
                )


def _may_grow(stream: Stream, identifier: int) -> bool:
    """Whether the segment is active, or one of an epoch to which a running scale or commit moves the stream."""
    return identifier in stream.epoch.by_id or segment_epoch(identifier) > stream.epoch.number

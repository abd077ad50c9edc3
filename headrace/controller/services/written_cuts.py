"""Whether a stream cut is within the bytes that are written: the part of its validity that only the stores know."""

from __future__ import annotations

from headrace.model.names import segment_name
from headrace.model.segments import segment_epoch
from headrace.model.stream_cuts import StreamCut, invalid_cut
from headrace.model.streams import Stream
from headrace.ports.segment_stores import SegmentStores


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
        growing = [one for one, offset in cut.positions if offset > 0 and _may_grow(stream, one)]
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

"""Where segments start now: what tier 2 has before that was truncated, and is not handed out any more.

Objects stay for a while after a truncation, and longer if they hold bytes that are left. Only the segment's store knows
the start: byte streams and revisioned streams are truncated there, without the controller.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.errors import TruncatedError
from headrace.ports.segment_stores import SegmentStores


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

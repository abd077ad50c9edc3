"""Stream cuts: a position in a stream, as an offset in each of the segments that cover the key space at that point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_HEADER_BYTES, SEGMENTS_PER_STREAM_MAX
from headrace.model.segments import segment_epoch

END_OF_SEGMENT: Final = -1
"""An offset of cuts by Java readers: the segment is sealed and read to its end (`cut_ends`)."""


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in a stream. `positions` are pairs of segment id and offset in bytes, sorted by id.

    An offset may be END_OF_SEGMENT as long as the cut is only stored or sent. Before a cut is compared or walked,
    `PlacedCuts.resolved` replaces it by the length of the segment.

    Raises:
        InvalidRequestError: code "invalid_stream_cut": no, too many or repeated segments, or a negative number other
            than END_OF_SEGMENT.
    """

    scope: str
    stream: str
    positions: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        try:
            ordered = tuple(sorted(self.positions))
            is_numeric = all(isinstance(offset, (int, Integral)) for pair in ordered for offset in pair)
        except TypeError:
            is_numeric = False
        if not is_numeric:
            raise invalid_cut("it has positions that are not pairs of a segment id and an offset")
        object.__setattr__(self, "positions", ordered)
        if not 1 <= len(self.positions) <= SEGMENTS_PER_STREAM_MAX:
            raise invalid_cut(f"it names {len(self.positions)} segments, not 1 to {SEGMENTS_PER_STREAM_MAX}")
        if len(dict(self.positions)) != len(self.positions):
            raise invalid_cut("it names a segment twice")
        if any(identifier < 0 or offset < END_OF_SEGMENT for identifier, offset in self.positions):
            raise invalid_cut("it has a negative segment id or an offset below -1")

    @classmethod
    def of(cls, scope: str, stream: str, offsets: Mapping[int, int]) -> StreamCut:
        """The cut at these offsets, in bytes, by segment id."""
        if not isinstance(offsets, Mapping):
            raise invalid_cut(f"its offsets are a {type(offsets).__name__}, not a mapping from segment ids to offsets")
        return cls(scope, stream, tuple(offsets.items()))

    def check_belongs_to(self, scope: str, stream: str) -> None:
        """Raises InvalidRequestError, code "invalid_stream_cut", if it is a position in another stream."""
        if (self.scope, self.stream) != (scope, stream):
            raise InvalidRequestError(
                f"the stream cut belongs to {self.scope}/{self.stream}, not to {scope}/{stream}",
                code="invalid_stream_cut",
            )

    def check_between_events(self) -> None:
        """Refuses an offset at which no event can begin: the header of the first one is there.

        Raises:
            InvalidRequestError: code "invalid_stream_cut".
        """
        for identifier, offset in self.positions:
            if 0 < offset < EVENT_HEADER_BYTES:
                raise invalid_cut(f"offset {offset} of segment {identifier} is inside the first event")

    @property
    def offsets(self) -> dict[int, int]:
        """Offset in bytes by segment id. Each call makes a new dictionary, so do not call it in a loop."""
        return dict(self.positions)

    @property
    def first_epoch(self) -> int:
        """The oldest epoch of its segments."""
        return min(segment_epoch(identifier) for identifier, _ in self.positions)

    @property
    def last_epoch(self) -> int:
        """The newest epoch of its segments."""
        return max(segment_epoch(identifier) for identifier, _ in self.positions)


def invalid_cut(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the stream cut is not valid: {reason}", code="invalid_stream_cut")

"""What the connector asks of a stream, as one Protocol; `client_access.py` answers it with the Python client.

The planner's driver process asks for cuts and ranges, tasks ask for chunks and bytes. Errors are those of
`headrace.model.errors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.client.range_bytes import SegmentSource
from headrace.client.segment_ranges import SegmentRange
from headrace.spark.planner import Positions

At = Literal["head", "tail"]


@dataclass(frozen=True, slots=True)
class RangesBetween:
    """All segments between two stream cuts, and the cuts themselves with "head" and "tail" resolved."""

    ranges: Sequence[SegmentRange]
    start: Positions
    end: Positions


class StreamAccess(SegmentSource, Protocol):
    """One stream."""

    def cut(self, at: At) -> Positions:
        """The stream cut where the stream begins or ends now."""
        ...

    def ranges_between(self, start: Positions | None, end: Positions | None) -> RangesBetween:
        """All segments between two cuts; None is the head or the tail. For explicit cuts always the same answer."""
        ...

    def event_boundary(self, segment_id: int, target: int, stop: int) -> int:
        """An event boundary in `[target, stop]`, near the target if one is known there; `stop` is one itself."""
        ...

    def cut_of_text(self, text: str) -> Positions:
        """The cut that a text encodes; InvalidRequestError if the text is not a cut of this stream."""
        ...

    def text_of_cut(self, positions: Positions) -> str: ...

    def close(self) -> None: ...

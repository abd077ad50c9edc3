"""What the controller asks of segment stores: operations on segments, wherever they live.

The adapter finds the owner of a segment's container, follows WrongHost, and retries a store that is restarting within
its deadline. Every operation may be repeated: creating what exists, sealing what is sealed and deleting what is gone
succeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Offsets in bytes; `last_modified_ms` since the Unix epoch."""

    name: str
    start_offset: int
    length: int
    is_sealed: bool
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class SegmentScaleRate:
    """Target rate of a segment as CreateSegment carries it: 0 none, 1 KB/s, 2 events/s."""

    scale_type: int = 0
    target_rate: int = 0


class SegmentStores(Protocol):
    """All segment stores of a deployment, addressed by segment name."""

    def create_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None: ...

    def seal_segment(self, name: str) -> None: ...

    def truncate_segment(self, name: str, offset: int) -> None: ...

    def delete_segment(self, name: str) -> None: ...

    def segment_info(self, name: str) -> SegmentInfo:
        """Raises NotFoundError if there is no such segment, UnavailableError if its store does not answer in time."""
        ...

    def segment_infos(self, names: list[str]) -> list[SegmentInfo]:
        """As `segment_info` for many segments, pipelined over one connection per store."""
        ...

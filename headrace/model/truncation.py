"""Where a stream begins: the cut before which its bytes are gone."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.epochs import Epoch
from headrace.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class Truncation:
    """The stream cut at which a stream was truncated."""

    cut: StreamCut


def very_beginning(scope: str, stream: str, first_epoch: Epoch) -> StreamCut:
    """Where reading a stream starts that was never truncated."""
    return StreamCut(scope, stream, tuple((segment.segment_id, 0) for segment in first_epoch.segments))

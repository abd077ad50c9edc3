"""The bytes that a batch leaves in its streams, also where the controller does not tell them with the batch.

It tells them while it loads the active segments for the batch anyway. For a batch that ends epochs before them it would
have to walk through all epochs between. That walk is asked for seldom; what was read since is subtracted meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.model.errors import HeadraceError
from headrace.spark.stream_access import Batch, Positions, StreamAccess

WALKS_EVERY_S: Final = 60.0
"""Between two walks for the same stream."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """The bytes that were behind `end` at `at_s`, None if they are not known."""

    at_s: float
    end: Positions
    left_bytes: int | None


class Backlogs:
    """Those of the streams of one query. Belongs to one thread of the driver."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._walks: dict[str, _Walk] = {}

    def behind(self, stream: str, access: StreamAccess, batch: Batch, end: Positions | None) -> int | None:
        """The bytes from the end of the batch to `end`, by default the tail.

        Between two walks it leaves out what was written since the last one. None: there are too many segments to walk.
        """
        if batch.left_bytes is not None:
            self._walks.pop(stream, None)
            return batch.left_bytes
        known, now_s = self._walks.get(stream), self._monotonic_s()
        if known is not None and now_s - known.at_s < WALKS_EVERY_S:
            walk = known if known.end == batch.end else _read_on(known, batch)
        else:
            walk = _Walk(now_s, batch.end, _distance(access, batch.end, end))
        self._walks[stream] = walk
        return walk.left_bytes


def _read_on(walk: _Walk, batch: Batch) -> _Walk:
    """What is left after one more batch; unknown if that was all that the walk has found."""
    left_bytes = (walk.left_bytes or 0) - sum(part.length_bytes for part in batch.ranges)
    return _Walk(walk.at_s, batch.end, left_bytes if left_bytes > 0 else None)


def _distance(access: StreamAccess, start: Positions, end: Positions | None) -> int | None:
    """The log line is not worth the failure of a batch."""
    try:
        return access.distance_bytes(start, end)
    except HeadraceError:
        return None

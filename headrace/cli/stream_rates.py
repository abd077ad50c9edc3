"""The rate at which streams grow, from two samples of their tails. It counts bytes also across a scale."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.parameters import ScopedName
from headrace.model.errors import InvalidRequestError, NotFoundError, TruncatedError
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.client.synchronous.synchronous_admin import Admin


class Growth(NamedTuple):
    """Bytes per second since the last sample, by segment id, and the tail of this sample."""

    bytes_per_s: Mapping[int, float]
    tail: StreamCut

    @property
    def total_bytes_per_s(self) -> float:
        return sum(self.bytes_per_s.values())


class _Sample(NamedTuple):
    at_s: float
    tail: StreamCut


class RateSampler:
    """Samples streams. The first sample of a stream has no rate."""

    def __init__(self, admin: Admin, now_s: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._now_s = now_s
        self._last: dict[ScopedName, _Sample] = {}

    def sample(self, stream: ScopedName) -> Growth | None:
        """Takes a sample; None for the first one of a stream, also after it was truncated or created again.

        Raises:
            NotFoundError: there is no such stream.
        """
        last = self._last.get(stream)
        if last is not None:
            try:
                return self._growth(stream, last)
            except (TruncatedError, InvalidRequestError, NotFoundError):
                del self._last[stream]
        self._last[stream] = _Sample(self._now_s(), self._admin.stream_cut(*stream))
        return None

    def _growth(self, stream: ScopedName, last: _Sample) -> Growth:
        found = self._admin.segments_between(*stream, last.tail)
        now_s = self._now_s()
        elapsed_s = max(now_s - last.at_s, 1e-9)
        self._last[stream] = _Sample(now_s, found.end)
        rates = {one.segment_id: (one.end_offset - one.start_offset) / elapsed_s for one in found.ranges}
        return Growth(rates, found.end)

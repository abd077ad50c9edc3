"""Drops the event numbers of disconnected writers from segments, so that there is room for new writers.

A segment keeps the last event number of every writer, which makes appends exactly-once across reconnects. A number
expires when no connection has set its writer up for a long time. Times are counted from the opening of the container
and do not survive a crash; the log has only the operations that dropped numbers. While a segment is evicted, its record
has the times.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from itertools import islice
from typing import Final

from headrace.codec import data_frames
from headrace.codec.container_snapshots import WritersGone
from headrace.model.limits import WRITER_KEPT_S_MIN
from headrace.model.segment_attributes import ATTRIBUTES_PER_SEGMENT_MAX, is_core
from headrace.ports.clock import Clock
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import OperationLog
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import unwatched

_log = logging.getLogger(__name__)

WRITER_KEPT_S: Final = 24 * 3_600.0
"""A writer's number expires after so long without a connection."""

CROWDED_AT: Final = ATTRIBUTES_PER_SEGMENT_MAX // 2
"""Attributes of a segment beyond which numbers expire after WRITER_KEPT_S_MIN, the oldest first."""

NEVER_EXPIRES_BELOW: Final = 1_000
"""In a segment with no more attributes than this, no number expires, since few numbers cost little."""

SWEEP_EVERY_S: Final = 1_800.0
"""With WRITER_KEPT_S_MIN this bounds the rate of new writers that a segment can accept for ever: 18 per second."""

PERIOD_S: Final = SWEEP_EVERY_S
"""The resolution of the times in the record of an evicted segment, which keeps them small."""

_CONNECTED: Final = -1

WRITERS_PER_TURN: Final = 10_000
"""Checked in one turn of the loop, or dropped by one operation of 160 KB."""


class WriterExpiry:
    """Tracks the connected and disconnected writers of one container's segments, and drops expired numbers.

    Writers are tracked by the name of their segment, so that a connection survives the segment's eviction.
    """

    def __init__(
        self,
        epoch: int,
        metadata: ContainerMetadata,
        log: OperationLog,
        clock: Clock,
        check_log_space: Callable[[], None],
    ) -> None:
        self._epoch = epoch
        self._metadata = metadata
        self._log = log
        self._clock = clock
        self._check_log_space = check_log_space
        self._connected: dict[str, dict[int, int]] = {}
        self._gone_since: dict[str, dict[int, float]] = {}
        """By segment and writer, the oldest first. The time of a writer that never connected starts at a sweep."""
        self._opened_s = clock.monotonic_s()

    def connect(self, segment: str, writer_id: int) -> None:
        """Note that a connection has set the writer up. Its number stays until `disconnect` was called as often."""
        connections = self._connected.setdefault(segment, {})
        connections[writer_id] = connections.get(writer_id, 0) + 1
        gone = self._gone_since.get(segment)
        if gone is not None:
            gone.pop(writer_id, None)

    def disconnect(self, segment: str, writer_id: int) -> None:
        """Note that a connection that had set the writer up has ended, or has set it up for another segment."""
        connections = self._connected[segment]
        connections[writer_id] -= 1
        if connections[writer_id]:
            return
        del connections[writer_id]
        if not connections:
            del self._connected[segment]
        gone, known = self._gone_since.get(segment), self._metadata.segments.get(segment)
        if gone is not None and known is not None and writer_id in known.accepted.attributes:
            gone[writer_id] = self._clock.monotonic_s()

    async def sweep(self) -> int:
        """Drop the expired numbers of all segments in memory. Returns their count.

        Raises:
            ThrottledError: the log holds too much that tier 2 lacks; try again.
            UnavailableError, FencedError: the container has stopped.
        """
        for name in [name for name in self._gone_since if name not in self._metadata.segments]:
            del self._gone_since[name]
        dropped = 0
        for looked_at, segment in enumerate(list(self._metadata.segments.values()), 1):
            dropped += await self.expire(segment)
            if looked_at % WRITERS_PER_TURN == 0:
                await asyncio.sleep(0)
        return dropped

    async def expire(self, segment: Segment) -> int:
        """Drop the expired numbers of one segment. Returns their count. Raises as `sweep`."""
        if len(segment.accepted.attributes) <= NEVER_EXPIRES_BELOW:
            self._gone_since.pop(segment.name, None)
            return 0
        now_s = self._clock.monotonic_s()
        await self._note_unseen(segment, now_s)
        dropped = 0
        while expired := self._expired(segment, now_s):
            self._drop(segment, expired)
            dropped += len(expired)
            await asyncio.sleep(0)
        if dropped:
            _log.info(
                "event=writers_forgotten container=%d segment=%r writers=%d left=%d",
                self._metadata.container,
                segment.name,
                dropped,
                len(segment.accepted.attributes),
            )
        return dropped

    # Evictions and activations

    def gone_of(self, segment: Segment) -> WritersGone | None:
        """The times for the segment's record; None if the segment has too few attributes for numbers to expire."""
        if len(segment.accepted.attributes) <= NEVER_EXPIRES_BELOW:
            return None
        gone, now_s = self._gone_since.setdefault(segment.name, {}), self._clock.monotonic_s()
        periods: list[int] = []
        for writer_id in _writer_ids(segment):
            if writer_id in self._connected.get(segment.name, ()):
                periods.append(_CONNECTED)
                continue
            since_s = gone.setdefault(writer_id, now_s)
            # Rounded up, so that a number never expires too early. Rounding the result again does not change it.
            periods.append(math.ceil((since_s - self._opened_s) / PERIOD_S))
        return WritersGone(self._epoch, tuple(periods))

    def evicted(self, segment: Segment) -> None:
        """Forget the times of a segment that was evicted; its record has those that `gone_of` returned."""
        self._gone_since.pop(segment.name, None)

    def activated(self, segment: Segment, recorded: WritersGone | None) -> None:
        """Take the times of an activated segment from its record, unless they are from another epoch."""
        if recorded is None or recorded.epoch != self._epoch:
            return
        writer_ids = _writer_ids(segment)
        if len(writer_ids) != len(recorded.periods):
            return  # the segment has changed since the record was written
        connected = self._connected.get(segment.name, ())
        gone = [
            (self._opened_s + period * PERIOD_S, writer_id)
            for writer_id, period in zip(writer_ids, recorded.periods, strict=True)
            if period != _CONNECTED and writer_id not in connected
        ]
        self._gone_since[segment.name] = {writer_id: since_s for since_s, writer_id in sorted(gone)}

    # Internal

    async def _note_unseen(self, segment: Segment, now_s: float) -> None:
        """Start the time of writers that were recovered from the log, or left while the segment had few attributes."""
        gone = self._gone_since.setdefault(segment.name, {})
        for looked_at, key in enumerate(list(segment.accepted.attributes), 1):
            # Check again: the attributes may have changed during a sleep.
            if key not in gone and key in segment.accepted.attributes and self._may_expire(segment, key):
                gone[key] = now_s
            if looked_at % WRITERS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _may_expire(self, segment: Segment, key: int) -> bool:
        connected = key in self._connected.get(segment.name, ())
        return not connected and not is_core(key) and key not in segment.accepted.client_attributes

    def _expired(self, segment: Segment, now_s: float) -> list[int]:
        """The writers to drop next, at most WRITERS_PER_TURN."""
        gone = self._gone_since.get(segment.name)
        if segment.accepted.removed or gone is None:
            return []
        count = len(segment.accepted.attributes)
        droppable = min(WRITERS_PER_TURN, count - NEVER_EXPIRES_BELOW)
        expired: list[int] = []
        for writer_id, since_s in islice(gone.items(), max(droppable, 0)):
            kept_s = WRITER_KEPT_S_MIN if count - len(expired) > CROWDED_AT else WRITER_KEPT_S
            if now_s - since_s < kept_s:
                break
            expired.append(writer_id)
        return expired

    def _drop(self, segment: Segment, expired: list[int]) -> None:
        self._check_log_space()
        operation = data_frames.ForgetWritersOperation(segment.number, tuple(expired))
        entry = self._log.append(data_frames.encode_operation(operation), unwatched)
        self._metadata.apply(operation, entry, self._log.current_ordering)()
        gone = self._gone_since[segment.name]
        for writer_id in expired:
            del gone[writer_id]


def _writer_ids(segment: Segment) -> list[int]:
    """The attribute ids that can be writer ids, in order."""
    return sorted(
        key for key in segment.accepted.attributes if not is_core(key) and key not in segment.accepted.client_attributes
    )

"""Lets a segment forget the event numbers of writers that are gone, so that new writers always find room.

Every writer leaves its last event number in the segment, which makes its appends exactly once across reconnects. A
number expires when no connection has had its writer set up for long. Time counts from the moment at which the
container opened: what survives a crash is the operation in the log that names the writers that were dropped. While a
segment is not in memory, its record has the times.
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
from headrace.ports.clock import Clock
from headrace.segmentstore.containers.attributes import ATTRIBUTES_PER_SEGMENT_MAX, is_core
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import OperationLog
from headrace.segmentstore.containers.pending import unwatched
from headrace.segmentstore.containers.segment import Segment

_log = logging.getLogger(__name__)

WRITER_KEPT_S: Final = 24 * 3_600.0
"""After so long without a connection a writer's number expires."""

CROWDED_AT: Final = ATTRIBUTES_PER_SEGMENT_MAX // 2
"""Attributes of a segment beyond which numbers expire after WRITER_KEPT_S_MIN, the oldest first."""

NEVER_EXPIRES_BELOW: Final = 1_000
"""A segment with no more attributes forgets no writer: their numbers cost nothing worth a limit."""

SWEEP_EVERY_S: Final = 1_800.0
"""With WRITER_KEPT_S_MIN this bounds how many new writers a segment takes for ever: 18 in a second."""

PERIOD_S: Final = SWEEP_EVERY_S
"""How exactly the record of a segment that is not in memory tells when a writer was gone: some bytes for each."""

_CONNECTED: Final = -1

WRITERS_PER_TURN: Final = 10_000
"""Looked at, or dropped by one operation of 160 KB, before others get their turn of the loop."""


class WriterExpiry:
    """The writers of one container's segments: who is connected, who left when, and a periodic task that drops numbers.

    Segments are known by name: a writer that is set up stays so while its segment leaves memory and comes back.
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
        """By segment and writer, the oldest first. One that has never been seen here counts from the next sweep."""
        self._opened_s = clock.monotonic_s()
        self._due_s = self._opened_s + SWEEP_EVERY_S

    def connect(self, segment: str, writer_id: int) -> None:
        """A connection has set the writer up: its number stays until as many calls of `disconnect`."""
        connections = self._connected.setdefault(segment, {})
        connections[writer_id] = connections.get(writer_id, 0) + 1
        gone = self._gone_since.get(segment)
        if gone is not None:
            gone.pop(writer_id, None)

    def disconnect(self, segment: str, writer_id: int) -> None:
        """A connection that had set the writer up has ended, or has set it up for another segment."""
        connections = self._connected[segment]
        connections[writer_id] -= 1
        if connections[writer_id]:
            return
        del connections[writer_id]
        if not connections:
            del self._connected[segment]
        gone, found = self._gone_since.get(segment), self._metadata.segments.get(segment)
        if gone is not None and found is not None and writer_id in found.attributes:
            gone[writer_id] = self._clock.monotonic_s()

    async def run_pass(self) -> bool:
        """A sweep if one is due; nothing is left to do at once after it. Raises as `sweep`."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._due_s:
            self._due_s = now_s + SWEEP_EVERY_S
            await self.sweep()
        return False

    async def sweep(self) -> int:
        """Drop the numbers that have expired; how many.

        Raises:
            ThrottledError: too much of the log is held for tier 2; try again.
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
        """Drop the numbers of one segment that have expired; how many. Raises as `sweep`."""
        if len(segment.attributes) <= NEVER_EXPIRES_BELOW:
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
                len(segment.attributes),
            )
        return dropped

    # Segments that leave memory and come back

    def gone_of(self, segment: Segment) -> WritersGone | None:
        """What the segment's record has to tell of its writers; None if the segment forgets none."""
        if len(segment.attributes) <= NEVER_EXPIRES_BELOW:
            return None
        gone, now_s = self._gone_since.setdefault(segment.name, {}), self._clock.monotonic_s()
        periods: list[int] = []
        for writer_id in _writer_ids(segment):
            if writer_id in self._connected.get(segment.name, ()):
                periods.append(_CONNECTED)
                continue
            since_s = gone.setdefault(writer_id, now_s)
            # Rounded up: a writer may be kept too long, never too short. What was rounded once stays as it is.
            periods.append(math.ceil((since_s - self._opened_s) / PERIOD_S))
        return WritersGone(self._epoch, tuple(periods))

    def evicted(self, segment: Segment) -> None:
        """The segment has left memory; its record has what `gone_of` told."""
        self._gone_since.pop(segment.name, None)

    def activated(self, segment: Segment, recorded: WritersGone | None) -> None:
        """The segment is in memory again. Time that another opening of the container counted is not taken over."""
        if recorded is None or recorded.epoch != self._epoch:
            return
        writer_ids = _writer_ids(segment)
        if len(writer_ids) != len(recorded.periods):
            return  # the segment is not what the record told
        connected = self._connected.get(segment.name, ())
        gone = [
            (self._opened_s + period * PERIOD_S, writer_id)
            for writer_id, period in zip(writer_ids, recorded.periods, strict=True)
            if period != _CONNECTED and writer_id not in connected
        ]
        self._gone_since[segment.name] = {writer_id: since_s for since_s, writer_id in sorted(gone)}

    # Inside

    async def _note_unseen(self, segment: Segment, now_s: float) -> None:
        """Let time count for writers that came with the log, or left while the segment had few."""
        gone = self._gone_since.setdefault(segment.name, {})
        for looked_at, key in enumerate(list(segment.attributes), 1):
            # Looked up again: others have had their turns since.
            if key not in gone and key in segment.attributes and self._may_expire(segment, key):
                gone[key] = now_s
            if looked_at % WRITERS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _may_expire(self, segment: Segment, key: int) -> bool:
        connected = key in self._connected.get(segment.name, ())
        return not connected and not is_core(key) and key not in segment.client_attributes

    def _expired(self, segment: Segment, now_s: float) -> list[int]:
        """The next writers to drop, at most WRITERS_PER_TURN."""
        gone = self._gone_since.get(segment.name)
        if segment.removed or gone is None:
            return []
        count = len(segment.attributes)
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
    """The ids that may be of writers, in order."""
    return sorted(key for key in segment.attributes if not is_core(key) and key not in segment.client_attributes)

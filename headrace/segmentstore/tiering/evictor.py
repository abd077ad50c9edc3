"""Evicts idle segments of one container when it has more segments in memory than a limit.

A segment is idle when no client has used it for a while, and tier 2 has all of it. The evictor writes its durable state
to a record. Then, if the segment has not changed meanwhile, it logs the eviction. After a crash in between the segment
is in memory, and its record is not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final
from weakref import WeakSet

from headrace.codec.container_snapshots import SegmentSnapshot, encode_segment
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import ItemRefusedError
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import RecordedState, Segment
from headrace.segmentstore.containers.settlements import undisturbed
from headrace.segmentstore.tiering.limits import StorageLimits
from headrace.segmentstore.tiering.segment_records import RECORDS_PER_WRITE_MAX, SegmentRecords, digest_of
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore

_log = logging.getLogger(__name__)

EVICTABLE_ATTRIBUTES_MAX: Final = 6_000
"""A segment with more stays in memory: with 56 bytes each, its record would come near BODY_BYTES_MAX."""

ATTRIBUTES_PER_BATCH_MAX: Final = 20_000
"""Of all segments of a batch: bounds the bytes of a transaction, and how long the loop encodes them."""

LOOKED_AT_PER_TURN: Final = 2_000
"""Segments that are checked in one turn of the loop."""

SWEEPS_PER_IDLE_TIME: Final = 4


class Evictor:
    """The task that evicts idle segments of one container.

    It starts when tier 2 has a snapshot, from which a restoration learns that segments may have records. `must_wait`
    tells of a segment for which the present snapshot may have a removed one of its name: a restoration would finish
    that removal, and remove the record with it. `forget` discards what tables keep of a segment, or returns False while
    they need it.
    """

    def __init__(
        self,
        container: SegmentContainer,
        records: SegmentRecords,
        snapshots: SnapshotStore,
        clock: Clock,
        limits: StorageLimits,
        must_wait: Callable[[Segment], bool],
        forget: Callable[[Segment], bool],
    ) -> None:
        self._container = container
        self._records = records
        self._snapshots = snapshots
        self._clock = clock
        self._limits = limits
        self._must_wait = must_wait
        self._forget = forget
        self._refused: WeakSet[Segment] = WeakSet()

    async def sweep(self) -> int:
        """Evict idle segments until no more than the limit are left, or none is idle. Returns how many were evicted.

        Raises:
            ThrottledError, UnavailableError: the metadata store does not answer; try again.
            FencedError: the container has another owner.
        """
        segments = self._container.metadata.segments
        if len(segments) <= self._limits.idle_segments_kept or not self._snapshots.has_pointer:
            return 0
        idle = await self._idle(len(segments) - self._limits.idle_segments_kept)
        gone = 0
        for batch in _batches(idle):
            gone += await self._evict(batch)
        if gone:
            self._container.metrics.evicted_segments += gone
            _log.info("event=evicted container=%d segments=%d left=%d", self._container.container, gone, len(segments))
        return gone

    async def _idle(self, count_max: int) -> list[Segment]:
        idle: list[Segment] = []
        for looked_at, segment in enumerate(list(self._container.metadata.segments.values()), 1):
            if self._is_idle(segment):
                idle.append(segment)
                if len(idle) == count_max:
                    break
            if looked_at % LOOKED_AT_PER_TURN == 0:
                await asyncio.sleep(0)
        return idle

    def _is_idle(self, segment: Segment) -> bool:
        idle_s = self._limits.idle_segment_s
        return (
            self._clock.monotonic_s() - segment.used_s >= idle_s
            and self._clock.now_ms() - segment.accepted.last_modified_ms >= 1000 * idle_s
            and len(segment.accepted.attributes) <= EVICTABLE_ATTRIBUTES_MAX
            and segment not in self._refused
            and self._container.idle.may_leave(segment)
            and not self._must_wait(segment)
        )

    async def _evict(self, batch: list[Segment]) -> int:
        """Write the outdated records of a batch, then evict segments that have not changed. Returns their number."""
        leaving: list[tuple[Segment, SegmentSnapshot, bytes, bytes]] = []
        for segment in batch:
            # Here too, since a segment may be in memory for less time than the interval of the writers' sweeps.
            await self._container.writers.expire(segment)
        for segment in batch:
            if self._is_idle(segment):  # again: time may have passed
                state = self._container.idle.state_of(segment)
                encoded = encode_segment(state)
                leaving.append((segment, state, encoded, digest_of(encoded)))
        self._container.idle.announce_records()
        await self._container.log.durable()  # a record must contain only durable state
        # Again: one that was removed meanwhile must not get a record any more, or it would come back.
        leaving = [one for one in leaving if self._is_idle(one[0])]
        outdated = [
            (segment, state, digest)
            for segment, state, _, digest in leaving
            if segment.recorded is None or segment.recorded.digest != digest
        ]
        if outdated:
            await undisturbed(asyncio.ensure_future(self._record_apart(outdated)))
        gone = 0
        for segment, _, encoded, digest in leaving:
            if segment.recorded is not None and segment.recorded.digest == digest and self._is_idle(segment):
                gone += self._container.idle.evict(segment, encoded, self._forget)
        return gone

    async def _record_apart(self, outdated: list[tuple[Segment, SegmentSnapshot, bytes]]) -> None:
        """Write records. A segment whose record the metadata store refuses for good stays in memory."""
        try:
            await self._record(outdated)
        except ItemRefusedError as error:
            if len(outdated) > 1:
                for each in outdated:
                    await self._record_apart([each])
                return
            segment = outdated[0][0]
            self._refused.add(segment)
            _log.error(
                "event=record_refused container=%d segment=%r error=%r",
                self._container.container,
                segment.name,
                error.message,
            )

    async def _record(self, outdated: list[tuple[Segment, SegmentSnapshot, bytes]]) -> None:
        recording = self._container.idle.recording
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        recording.update((segment.number, done) for segment, _, _ in outdated)
        try:
            with self._container.unanswered.noted(*(segment.name for segment, _, _ in outdated)):
                versions = await self._records.write([(state, segment.recorded) for segment, state, _ in outdated])
        finally:
            for segment, _, _ in outdated:
                del recording[segment.number]
            done.set_result(None)
        for (segment, _, digest), version in zip(outdated, versions, strict=True):
            segment.recorded = RecordedState(version, digest)


def _batches(segments: list[Segment]) -> Iterator[list[Segment]]:
    """As many segments at once as one transaction takes."""
    batch: list[Segment] = []
    attributes = 0
    for segment in segments:
        attributes += len(segment.accepted.attributes)
        if batch and (len(batch) == RECORDS_PER_WRITE_MAX or attributes > ATTRIBUTES_PER_BATCH_MAX):
            yield batch
            batch, attributes = [], len(segment.accepted.attributes)
        batch.append(segment)
    if batch:
        yield batch

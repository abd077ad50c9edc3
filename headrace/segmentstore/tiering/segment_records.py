"""The records of one container's segments that are not in memory: reads them when asked, writes them before one leaves.

Writes are conditional on what is there, so that one which arrives late overwrites nothing newer, and are in one
transaction with a check of the container's claim. Look-ups that come together share a read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final
from weakref import WeakSet

from headrace.codec.container_snapshots import SegmentSnapshot, encode_segment
from headrace.metadata.evicted_segment import evicted_segment_key, read_segment_record, write_segment_record
from headrace.model.chunks import TableMark
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.segment_attributes import CREATION_TIME, SEGMENT_TYPE, TABLE_KEY_LENGTH, TABLE_SEGMENT
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import (
    WRITES_PER_TRANSACTION_MAX,
    Create,
    Delete,
    ItemRefusedError,
    MetadataStore,
    Record,
    Replace,
    WriteConflictError,
)
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.idle_segments import EvictedSegment
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.segment import RecordedState, Segment
from headrace.segmentstore.containers.settlements import undisturbed
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.owner_writes import ClaimedWrites
from headrace.segmentstore.tiering.restoration import reconciled_segment
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore
from headrace.segmentstore.tiering.storage_limits import StorageLimits

RECORDS_PER_READ_MAX: Final = 25
READS_AT_ONCE_MAX: Final = 4
"""Together they bound the memory of answers: records are small, but may have 390 KiB each."""

RECORDS_PER_WRITE_MAX: Final = WRITES_PER_TRANSACTION_MAX - 1
WRITE_ATTEMPTS_MAX: Final = 4

_DIGEST_BYTES: Final = 16
_NO_VERSION: Final = -1
"""Of a record that does not exist."""

_log = logging.getLogger(__name__)


class SegmentRecords:
    """The records of the container that `directory` is of."""

    def __init__(self, store: MetadataStore, directory: ChunkDirectory, metadata: ContainerMetadata) -> None:
        self._store = store
        self._directory = directory
        self._metadata = metadata
        self._claimed = ClaimedWrites(store, directory.container, directory.epoch)
        self._wanted: dict[str, asyncio.Future[Record | None]] = {}
        self._readers: set[asyncio.Task[None] | None] = set()

    async def find(self, name: str) -> EvictedSegment | None:
        """Find the evicted segment with this name; None if there is none. Call it once at a time for a name.

        Raises:
            CorruptError: the record cannot be read, or the chunk directory lacks bytes that it claims.
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        record = await self._read(name)
        if record is None:
            return await self._left_over(name) if self._metadata.doubtful_before else None
        stored = read_segment_record(record)
        if stored.state.name != name:
            raise CorruptError(f"the record of segment {name} is that of {stored.state.name}")
        recorded = RecordedState(record.version, digest_of(encode_segment(stored.state)))
        state: SegmentSnapshot | None = stored.state
        if stored.epoch < self._metadata.doubtful_before:
            state = await reconciled_segment(stored.state, self._directory, frees_name=True)
        if state is None:
            await self._remove(name, record.version)
            return None
        return EvictedSegment(state, recorded)

    async def _remove(self, name: str, version: int) -> None:
        """Remove the record of a segment whose removal a lost log had told: it would count as that of the next segment.

        Without an answer it may take effect late, but long before the next segment has been idle and gets a record.
        """
        with suppress(WriteConflictError):  # an earlier removal, of which nothing was heard
            await self._claimed.write(Delete(evicted_segment_key(name), version))

    async def _left_over(self, name: str) -> EvictedSegment | None:
        """A segment of which a lost log had told, and tier 2 has nothing but its runs: it came after the last snapshot.

        Its bytes were acknowledged, and it was told to exist. What is lost are its attributes, its seal, and with the
        numbers of its writers whether an event that is sent again is there already. A table is known by its runs: as
        another segment it would take events between its entries.
        """
        nothing = SegmentSnapshot(0, name, 0, 0, False, 0, {})
        left = await reconciled_segment(nothing, self._directory, frees_name=True)
        if left is None or not left.length:
            return None
        newest = await self._directory.run_before(name, left.length - 1)
        if newest is not None and newest.table is not None:
            left = replace(left, attributes=_attributes_of_table(newest.table))
        _log.warning(
            "event=segment_found container=%d segment=%r length=%d", self._directory.container, name, left.length
        )
        return EvictedSegment(left, RecordedState(_NO_VERSION, b""))

    async def write(self, segments: Sequence[tuple[SegmentSnapshot, RecordedState | None]]) -> list[int]:
        """Write the records of segments, with what is known of the records there; their versions then.

        Raises:
            FencedError: the container has another owner; nothing was written.
            ThrottledError, UnavailableError: the metadata store does not answer; it has all of them or none.
        """
        versions = [_NO_VERSION if recorded is None else recorded.version for _, recorded in segments]
        for _ in range(WRITE_ATTEMPTS_MAX):
            writes = [self._write(state, version) for (state, _), version in zip(segments, versions, strict=True)]
            try:
                await self._claimed.write(*writes)
            except WriteConflictError as error:
                for index, record in error.failed.items():
                    versions[index - 1] = _NO_VERSION if record is None else record.version
                continue
            return [version + 1 for version in versions]
        raise UnavailableError(f"records of container {self._directory.container} change while they are written")

    def _write(self, state: SegmentSnapshot, version: int) -> Create | Replace:
        return write_segment_record(state, self._directory.epoch, None if version < 0 else version)

    async def _read(self, name: str) -> Record | None:
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._wanted[name] = future
        if len(self._readers) < READS_AT_ONCE_MAX:
            reader = asyncio.ensure_future(self._read_wanted())
            self._readers.add(reader)
        return await future

    async def _read_wanted(self) -> None:
        """Read records until no look-up waits. Names that are added meanwhile share the next read."""
        reader = asyncio.current_task()
        try:
            while self._wanted:
                await self._read_some()
        finally:
            # At once, not in a callback of the next turn: a look-up that comes before it would count on this reader.
            self._readers.discard(reader)

    async def _read_some(self) -> None:
        names = list(islice(self._wanted, RECORDS_PER_READ_MAX))
        futures = [self._wanted.pop(name) for name in names]
        try:
            records = await asyncio.to_thread(self._store.get_many, [evicted_segment_key(name) for name in names])
        except Exception as error:  # noqa: BLE001 - the waiting look-ups must get every error
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, record in zip(futures, records, strict=True):
            if not future.done():
                future.set_result(record)


def _attributes_of_table(mark: TableMark) -> dict[int, int]:
    return {CREATION_TIME: mark.created_ms, SEGMENT_TYPE: TABLE_SEGMENT, TABLE_KEY_LENGTH: mark.key_length}


def digest_of(state: bytes) -> bytes:
    """What tells two encoded states apart."""
    return hashlib.blake2b(state, digest_size=_DIGEST_BYTES).digest()


# Evicts idle segments of one container when it has more segments in memory than a limit.
#
# A segment is idle when no client has used it for a while, and tier 2 has all of it. The evictor writes its durable
# state to a record. Then, if the segment has not changed meanwhile, it logs the eviction. After a crash in between the
# segment is in memory, and its record is not read.

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
        leaving = [each for each in leaving if self._is_idle(each[0])]
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

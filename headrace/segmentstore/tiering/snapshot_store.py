"""Snapshots of one container's metadata in tier 2: written at intervals, and found by the pointer record.

The pointer is written in one transaction with a check of the container's claim, so that a fenced owner changes nothing.
An object that a failed or cancelled write leaves is removed after the next write. A crash between two steps leaves an
object that no pointer names. It is never read, and never removed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, decode_snapshot, encode_snapshot
from headrace.codec.object_names import snapshot_name
from headrace.metadata.cluster_records import read_snapshot_pointer, snapshot_key, write_snapshot_pointer
from headrace.model.backoff import doubled_pause
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError, HeadraceError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Create, MetadataStore, Record, Replace, WriteConflictError
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.tiering.maintenance import ends_container, reported_as_refusal
from headrace.segmentstore.tiering.owner_writes import ClaimedWrites, put_new
from headrace.segmentstore.tiering.storage_limits import StorageLimits

_log = logging.getLogger(__name__)

SNAPSHOT_BYTES_MAX: Final = 1 << 30
"""Some millions of segments: what claims to be larger is not read into memory."""

READ_BYTES: Final = 8 << 20

UNNAMED_MAX: Final = 100
"""Objects to remove that are remembered. While tier 2 fails for long, the oldest are left behind."""


class SnapshotStore:
    """`epoch` is the version of the container's claim."""

    def __init__(self, metadata_store: MetadataStore, chunk_storage: ChunkStorage, container: int, epoch: int) -> None:
        self._metadata_store = metadata_store
        self._chunk_storage = chunk_storage
        self._container = container
        self._epoch = epoch
        self._claimed = ClaimedWrites(metadata_store, container, epoch)
        self._key = snapshot_key(container)
        self._record: Record | None = None
        self._record_known = False
        self._written = 0
        self._unnamed: dict[str, None] = {}
        """Objects that the pointer will not name after the next write, in the order of their making."""
        self.may_be_clean = False
        """Whether a write of a clean pointer was begun. Its outcome may be unknown, and may still change."""

    @property
    def has_pointer(self) -> bool:
        """Whether tier 2 has a snapshot of this container for sure."""
        return self._record is not None

    async def pointer(self) -> SnapshotPointer | None:
        """What names the newest snapshot; None if this container never had one.

        Raises:
            CorruptError: the record is none that this version knows.
            UnavailableError: the metadata store does not answer.
        """
        self._record = await asyncio.to_thread(self._metadata_store.get, self._key)
        self._record_known = True
        return None if self._record is None else self._pointer_in(self._record)

    async def load(self, pointer: SnapshotPointer) -> ContainerSnapshot:
        """The snapshot that a pointer names.

        Raises:
            CorruptError: the object is missing, or is not what was written.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        name, length = pointer.object_name, pointer.length
        if not 0 < length <= SNAPSHOT_BYTES_MAX:
            raise CorruptError(f"the pointer to snapshot {name} claims {length} bytes, at most {SNAPSHOT_BYTES_MAX}")
        parts: list[bytes] = []
        checksum = 0
        for position in range(0, length, READ_BYTES):
            try:
                part = await self._chunk_storage.read(name, position, min(READ_BYTES, length - position))
            except HeadraceError as error:
                if error.code == "not_found":
                    raise CorruptError(
                        f"snapshot {name} of container {self._container} is missing in tier 2: restore the object "
                        "from an older version in the bucket, since only it has the list of segments"
                    ) from error
                raise
            checksum = crc32c(part, checksum)
            parts.append(part)
        if checksum != pointer.checksum:
            raise CorruptError(f"snapshot {name} has the checksum {checksum}, its pointer says {pointer.checksum}")
        return await asyncio.to_thread(decode_snapshot, parts)

    async def replace(self, parts: Sequence[bytes], *, clean: bool) -> None:
        """Make the snapshot of these parts the newest one, and remove the one before.

        Raises:
            FencedError: the container has another owner; the pointer is as it was.
            ThrottledError, UnavailableError: tier 2 does not answer; either snapshot may be the newest.
        """
        self._written += 1
        name = snapshot_name(self._container, self._epoch, self._written)
        self._will_be_unnamed(name)
        await put_new(self._chunk_storage, name, parts)
        checksum = 0
        for part in parts:
            checksum = crc32c(part, checksum)
        pointer = SnapshotPointer(name, sum(map(len, parts)), checksum, self._epoch, clean)
        if clean or not self._record_known:
            await self.pointer()  # also to notice an outage before a write whose outcome would be unknown
        former = self._record
        if former is not None:
            self._will_be_unnamed(self._pointer_in(former).object_name)
        write = write_snapshot_pointer(self._container, pointer, None if former is None else former.version)
        version = 0 if former is None else former.version + 1
        self._record_known = False  # until the write has answered
        self.may_be_clean |= clean
        await self._write(write)
        self._record, self._record_known = Record(self._key, version, write.body), True
        # A former write of the pointer that arrives now finds another version: no pointer will name the others.
        unnamed, self._unnamed = [each for each in self._unnamed if each != name], {}
        if unnamed:
            await self._remove(unnamed)

    async def take_clean_mark_off(self, pointer: SnapshotPointer) -> None:
        """Have the pointer that was read last say that tier 2 may lack something: the container is about to be served.

        Raises:
            FencedError: the container has another owner.
            ThrottledError, UnavailableError: the metadata store does not answer; read the pointer again.
        """
        former = self._record
        if former is None or not pointer.clean:
            return
        write = write_snapshot_pointer(self._container, dataclasses.replace(pointer, clean=False), former.version)
        self._record_known = False  # until the write has answered
        await self._write(write)
        self._record, self._record_known = Record(self._key, former.version + 1, write.body), True

    async def _write(self, write: Create | Replace) -> None:
        try:
            await self._claimed.write(write)
        except WriteConflictError as error:
            raise UnavailableError(
                f"the snapshot pointer of container {self._container} has changed: reading it again"
            ) from error

    def _will_be_unnamed(self, name: str) -> None:
        self._unnamed[name] = None
        while len(self._unnamed) > UNNAMED_MAX:
            del self._unnamed[next(iter(self._unnamed))]

    async def _remove(self, names: Sequence[str]) -> None:
        try:
            await self._chunk_storage.delete(names)
        except Exception as error:  # noqa: BLE001 - an unused object that stays must not stop the container
            for name in names:
                _log.warning("event=snapshot_left_behind container=%d object=%s error=%r", self._container, name, error)

    def _pointer_in(self, record: Record) -> SnapshotPointer:
        try:
            return read_snapshot_pointer(record)
        except CorruptError as error:
            raise CorruptError(f"the snapshot pointer of container {self._container}: {error.message}") from error


# Writes snapshots of one container's metadata to tier 2, at intervals of time.
#
# A snapshot is taken at one moment, and written when the log has made durable everything up to that moment. The last
# one, at a graceful shutdown, is exact: the container accepts nothing more, and a store without this volume can
# continue from it without a loss.


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot of the moment when `sequence` was the newest operation."""

    snapshot: ContainerSnapshot
    sequence: int
    changes: int
    taken_s: float


class SnapshotWriter:
    """One per container, driven by its storage writer. `covered`: the pointer tells all that the container is now.

    `on_taken` is called with a snapshot that tier 2 may have from now on, `on_written` with one that it has.
    """

    def __init__(
        self,
        container: SegmentContainer,
        snapshots: SnapshotStore,
        clock: Clock,
        limits: StorageLimits,
        on_written: Callable[[ContainerSnapshot], None],
        on_taken: Callable[[ContainerSnapshot], None],
        *,
        covered: bool,
    ) -> None:
        self._container = container
        self._snapshots = snapshots
        self._clock = clock
        self._limits = limits
        self._on_written = on_written
        self._on_taken = on_taken
        self._opened_sequence = container.log.last_sequence
        self._sequence: int | None = container.log.last_sequence if covered else None
        self._changes = container.changes if covered else -1
        self._changed_since_s: float | None = None
        self._taken_s = clock.monotonic_s()
        self._waiting: _Taken | None = None
        self._wanted = False
        self.written = 0

    def want(self) -> None:
        """Write a snapshot as soon as possible, even if nothing has changed."""
        self._wanted = True

    async def advance(self) -> None:
        """Take a snapshot if one is due; write it if the log has everything that is in it. Never waits for the log.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; try again.
            FencedError: the container has another owner.
        """
        if self._waiting is None and self._due:
            self._waiting = self._take()
            self._on_taken(self._waiting.snapshot)
            self._container.log.when_durable(self._container.wake_flusher)
        taken = self._waiting
        if taken is None or self._container.log.durable_sequence < taken.sequence:
            return
        self._waiting = None  # after a failure the next one is of a later moment
        parts = await asyncio.to_thread(lambda: list(encode_snapshot(taken.snapshot)))
        await self._snapshots.replace(parts, clean=False)
        self._sequence, self._changes, self._taken_s = taken.sequence, taken.changes, taken.taken_s
        self._changed_since_s = None
        self._wanted = False
        self.written += 1
        self._on_written(taken.snapshot)

    @property
    def may_be_clean(self) -> bool:
        """Whether tier 2 may say that it has everything of this container, so that another store may own it."""
        return self._snapshots.may_be_clean

    async def write_last(self) -> bool:
        """Suspend the log and write the last snapshot, with retries until it succeeds or the caller cancels.

        Returns whether tier 2 has everything.

        Raises:
            FencedError: the container has another owner.
            UnavailableError: the log has failed.
        """
        self._mark_epoch()
        log = self._container.log
        while not log.is_durable or log.failure is not None:
            await log.durable()
        # Nothing else runs between here and `suspend`: what the snapshot tells is what the container was.
        metadata = self._container.metadata
        clean = all(segment.is_stored for segment in metadata.segments.values())
        snapshot = replace(metadata.stored_snapshot(), ordering=log.current_ordering)
        self._on_taken(snapshot)  # if it is not clean, the container may be served again
        parts = list(encode_snapshot(snapshot))
        log.suspend(UnavailableError(f"container {self._container.container} has written its last snapshot"))
        failures = 0
        while True:
            try:
                await self._snapshots.replace(parts, clean=clean)
            except HeadraceError as error:
                if ends_container(error):
                    raise
                failures += 1
                retry_s = doubled_pause(failures, self._limits.retry_first_s, self._limits.retry_max_s)
                self._warn(error, retry_s)
                await asyncio.sleep(retry_s)
                continue
            _log.info("event=last_snapshot container=%d clean=%s", self._container.container, clean)
            return clean

    def _take(self) -> _Taken:
        self._mark_epoch()
        container = self._container
        snapshot = replace(container.metadata.stored_snapshot(), ordering=container.log.current_ordering)
        return _Taken(snapshot, container.log.last_sequence, container.changes, self._clock.monotonic_s())

    def _mark_epoch(self) -> None:
        """Have an operation of this owner in the log before the pointer names its epoch.

        A log whose newest entry is older than the pointer is the past of a container that went on elsewhere.
        """
        log = self._container.log
        if log.last_sequence == self._opened_sequence:
            log.append(data_frames.encode_operation(data_frames.StoredOperation(())), _unwatched)

    @property
    def _due(self) -> bool:
        if self._wanted:
            return True
        now_s = self._clock.monotonic_s()
        if self._container.changes != self._changes:
            if self._changed_since_s is None:
                self._changed_since_s = now_s
            if now_s - self._changed_since_s >= self._limits.snapshot_soon_s:
                return True
        changed = self._container.log.last_sequence != self._sequence
        return changed and now_s - self._taken_s >= self._limits.snapshot_every_s

    def _warn(self, error: HeadraceError, retry_s: float) -> None:
        if reported_as_refusal(self._container, error, retry_s):
            return
        _log.warning(
            "event=snapshot_retry container=%d retry_s=%.1f error=%r", self._container.container, retry_s, error.message
        )


def _unwatched(_error: HeadraceError | None) -> None:
    """For operations without a waiting caller. A failure of the log stops the container in any case."""

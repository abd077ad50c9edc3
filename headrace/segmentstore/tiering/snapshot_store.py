"""The newest snapshot of one container's metadata in tier 2: an immutable object, and the pointer record that names it.

The pointer is written in one transaction with a check of the container's claim, so that a fenced owner changes nothing.
An object that a failed or cancelled write leaves is removed after the next write. A crash between two steps leaves an
object that no pointer names. It is never read, and never removed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from headrace.codec.container_snapshots import ContainerSnapshot, decode_snapshot
from headrace.metadata.cluster_records import read_snapshot_pointer, snapshot_key, write_snapshot_pointer
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError, HeadraceError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.metadata_store import Create, MetadataStore, Record, Replace, WriteConflictError
from headrace.segmentstore.tiering.claimed_writes import ClaimedWrites
from headrace.segmentstore.tiering.object_names import put_new

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
        name = f"snapshots/container-{self._container:04d}/{self._epoch:010d}-{self._written:010d}"
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
        unnamed, self._unnamed = [one for one in self._unnamed if one != name], {}
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

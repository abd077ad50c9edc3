"""The records of one container's segments that are not in memory: reads them when asked, writes them before one leaves.

Writes are conditional on what is there, so that one which arrives late overwrites nothing newer, and are in one
transaction with a check of the container's claim. Look-ups that come together share a read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from headrace.codec.container_snapshots import SegmentSnapshot, encode_segment
from headrace.metadata.evicted_segment import evicted_segment_key, read_segment_record, write_segment_record
from headrace.model.chunks import TableMark
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.segment_attributes import (
    CREATION_TIME,
    SEGMENT_TYPE,
    TABLE_KEY_LENGTH,
    TABLE_SEGMENT,
)
from headrace.ports.metadata_store import (
    WRITES_PER_TRANSACTION_MAX,
    Create,
    Delete,
    MetadataStore,
    Record,
    Replace,
    WriteConflictError,
)
from headrace.segmentstore.containers.idle_segments import EvictedSegment
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.segment import RecordedState
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.owner_writes import ClaimedWrites
from headrace.segmentstore.tiering.restoration import reconciled_segment

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
        found = read_segment_record(record)
        if found.state.name != name:
            raise CorruptError(f"the record of segment {name} is that of {found.state.name}")
        recorded = RecordedState(record.version, digest_of(encode_segment(found.state)))
        state: SegmentSnapshot | None = found.state
        if found.epoch < self._metadata.doubtful_before:
            state = await reconciled_segment(found.state, self._directory, frees_name=True)
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
        found = await reconciled_segment(nothing, self._directory, frees_name=True)
        if found is None or not found.length:
            return None
        newest = await self._directory.run_before(name, found.length - 1)
        if newest is not None and newest.table is not None:
            found = replace(found, attributes=_attributes_of_table(newest.table))
        _log.warning(
            "event=segment_found container=%d segment=%r length=%d", self._directory.container, name, found.length
        )
        return EvictedSegment(found, RecordedState(_NO_VERSION, b""))

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

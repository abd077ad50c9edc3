"""Brings a container back from its log: the snapshot at the truncation point, then every operation after it.

Bytes that tier 2 does not have come back into memory, whatever the budget says: they were acknowledged. Which ones
these are is known only when the whole log was replayed, so that it is read twice, the second time from the first such
byte on, when the container takes appends already (`backfill`).

The log is read and decoded in another thread and applied on the loop, a slice at a time: the store's heartbeats and the
containers that are served already go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, decode_snapshot
from headrace.codec.data_frames import AppendOperation, CheckpointOperation, Operation
from headrace.model.errors import CorruptError
from headrace.ports.clock import Clock
from headrace.ports.ledger import Ledger
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.frame_reader import FrameReader, LoggedOperation
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.segment import Segment

OPERATIONS_PER_SLICE: Final = 1000
"""Applied without a pause: some 5 ms. That is how long an acknowledgement of another container may wait for it."""

SLICE_BYTES: Final = 4 << 20
"""Read ahead at most, and one operation more."""


class _ReadOperation(NamedTuple):
    """An operation, and where the log has it."""

    logged: LoggedOperation
    operation: Operation


class Recovery:
    """One recovery of one container. `dirty` are the segments that have bytes to store or directories to edit."""

    def __init__(self, container: int, pool: BlockPool, clock: Clock) -> None:
        self.metadata = ContainerMetadata(container, pool)
        self.dirty: dict[int, Segment] = {}
        self.frames = FrameReader(container)
        self._pool = pool
        self._clock = clock
        self._snapshot_parts: list[bytes] = []
        self._restored = False
        self.operations = 0
        self.told_nothing = True
        """The log is new, or a restoration from tier 2 did not come to its end: nothing was ever served from it."""

    @property
    def has_cut_checkpoint(self) -> bool:
        """Whether the log is nothing but the begin of a checkpoint.

        A log is truncated to a checkpoint only when that is whole. So this is the first one of a restoration that did
        not come to its end, whatever number its first entry has: numbers continue when a log was forgotten.
        """
        return bool(self._snapshot_parts) and not self._restored

    async def run(self, ledger: Ledger) -> Backfill:
        """Replay the ledger; the load of what tier 2 lacks, which is not done yet.

        Raises:
            CorruptError: the log contradicts itself; nothing may be served from it.
        """
        try:
            await self._replay_all(ledger)
            load = Backfill(self.metadata, self._pool, ledger)
        except BaseException:
            self.metadata.release_memory()  # no container will have these segments: their room belongs to the others
            raise
        self._collect_dirty()
        return load

    async def _replay_all(self, ledger: Ledger) -> None:
        found = self._read(ledger)
        while read := await asyncio.to_thread(_next_slice, found):
            for each in read:
                self.operations += 1
                if isinstance(each.operation, CheckpointOperation):
                    if self._take_checkpoint(each.operation, starts_log=self.operations == 1):
                        self.metadata.restore(await asyncio.to_thread(decode_snapshot, self._snapshot_parts))
                        self._restored = True
                else:
                    self._replay(each.operation, each.logged)
        if self._restored:
            self.told_nothing = False

    def _read(self, ledger: Ledger) -> Iterator[_ReadOperation]:
        """All operations of the log; for a thread other than the loop's: it blocks while it reads."""
        for stored in ledger.recover():
            for logged in self.frames.read(stored.entry, stored.payload):
                yield _ReadOperation(logged, data_frames.decode_operation(logged.content))

    def _replay(self, operation: Operation, logged: LoggedOperation) -> None:
        if self.has_cut_checkpoint:
            raise CorruptError(f"the checkpoint at the start of the log of {self._name} is incomplete")
        self.told_nothing = False
        if isinstance(operation, AppendOperation):
            self._append(operation, logged)
        else:
            self.metadata.apply(operation, logged.entry, logged.ordering)()

    def restore(self, snapshot: ContainerSnapshot) -> None:
        """Start from a snapshot of tier 2 instead of a log that told nothing; every length in it is a stored one."""
        self.metadata.restore(snapshot)
        for segment in self.metadata.segments.values():
            segment.told_start = segment.start_offset
        self._collect_dirty()

    @property
    def _name(self) -> str:
        return f"container {self.metadata.container}"

    def _take_checkpoint(self, operation: CheckpointOperation, *, starts_log: bool) -> bool:
        """Only the checkpoint at the truncation point counts; to any later one the replay leads by itself.

        Whether its snapshot is complete with this part.
        """
        if self._restored or not (starts_log or self._snapshot_parts):
            return False
        if operation.part == 0:
            self._snapshot_parts = []  # what came before is of a restoration that did not come to its end
        if operation.part != len(self._snapshot_parts):
            raise CorruptError(f"the checkpoint of {self._name} lacks part {len(self._snapshot_parts)}")
        self._snapshot_parts.append(bytes(operation.snapshot))
        return operation.last

    def _append(self, operation: AppendOperation, logged: LoggedOperation) -> None:
        segment = self.metadata.by_number(operation.number)
        if operation.offset != segment.length:
            raise CorruptError(
                f"the log of {self._name} appends to {segment.name} at {operation.offset}, its length is "
                f"{segment.length}"
            )
        length = len(operation.data)
        previous_number = segment.attribute(operation.writer_id)
        segment.length = segment.readable_length = operation.offset + length
        segment.attributes[operation.writer_id] = operation.event_number
        segment.count_events(operation.event_count)
        segment.last_modified_ms = operation.now_ms
        if not length:
            return
        mark = (operation.writer_id, previous_number, operation.event_count)
        segment.index.add(operation.offset, self._pool.promise(length, logged.position), logged.entry, mark)
        segment.times.note(operation.offset, logged.ordering)

    def _collect_dirty(self) -> None:
        now_s = self._clock.monotonic_s()
        for segment in self.metadata.segments.values():
            if segment.untiered_bytes or segment.start_offset:
                self.dirty[segment.number] = segment
                segment.untiered_since_s = now_s


def _next_slice(found: Iterator[_ReadOperation]) -> list[_ReadOperation]:
    """The next operations, as many as are applied at once; none at the end of the log."""
    read: list[_ReadOperation] = []
    read_bytes = 0
    for each in islice(found, OPERATIONS_PER_SLICE):
        read.append(each)
        read_bytes += len(each.logged.content)
        if read_bytes >= SLICE_BYTES:
            break
    return read

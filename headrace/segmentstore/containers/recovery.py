"""Rebuilds a container from its log: the checkpoint at the truncation point, then every operation after it.

Bytes that tier 2 lacks are loaded into memory even beyond the budget, since they were acknowledged. Which ones these
are is known only after the replay of the whole log. The log is therefore read a second time from the first such byte
on, while the container accepts appends already (`backfill`).

Another thread reads and decodes the log; the event loop applies one slice of operations at a time. Heartbeats and other
containers run in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, decode_snapshot, encode_snapshot
from headrace.codec.data_frames import AppendOperation, CheckpointOperation, Operation
from headrace.model.errors import CorruptError, HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.ledger import Ledger
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.backfill import Backfill
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.container_rates import ContainerRates
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import FrameReader, LoggedOperation
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import settle_replayed_append

OPERATIONS_PER_SLICE: Final = 1000
"""Applied in one turn of the loop, in about 5 ms, which delay the acknowledgements of other containers."""

SLICE_BYTES: Final = 4 << 20
"""Bytes per read; one more operation may follow."""


class _ReadOperation(NamedTuple):
    """An operation, and its place in the log."""

    logged: LoggedOperation
    operation: Operation


class Recovery:
    """One recovery of one container. `dirty` are the segments with bytes to flush or directories to change.

    `rates` watches the segments of the container once it is served.
    """

    def __init__(self, container: int, pool: BlockPool, clock: Clock, rates: ContainerRates | None = None) -> None:
        self.rates = ContainerRates(clock, None) if rates is None else rates
        self.metadata = ContainerMetadata(container, pool, self.rates.watch)
        self.dirty: dict[int, Segment] = {}
        self.frames = FrameReader(container)
        self._pool = pool
        self._clock = clock
        self._snapshot_parts: list[bytes] = []
        self._restored = False
        self.operations = 0
        self.told_nothing = True
        """The log is new, or a restoration from tier 2 was interrupted: nothing was ever served from this log."""
        self.ordering_at_loss = 0
        """The number of the last frame from before an accepted loss, if the log has one (`Ledger.continued_at`)."""

    @property
    def has_cut_checkpoint(self) -> bool:
        """Whether the log contains only the start of a checkpoint.

        A log is truncated to a checkpoint only when the checkpoint is complete. So this one comes from an interrupted
        restoration. The number of its first entry does not matter, since numbers continue after a discarded log.
        """
        return bool(self._snapshot_parts) and not self._restored

    async def run(self, ledger: Ledger) -> Backfill:
        """Replay the ledger. Returns the backfill of the bytes that tier 2 lacks, which is not started.

        Raises:
            CorruptError: the log contradicts itself; nothing may be served from it.
        """
        try:
            await self._replay_all(ledger)
            load = await Backfill.of_replayed(self.metadata, self._pool, ledger)
        except BaseException:
            self.metadata.release_memory()  # these segments are discarded, so other containers need the room
            raise
        self._collect_dirty()
        return load

    async def _replay_all(self, ledger: Ledger) -> None:
        operations = self._read(ledger)
        continued_at = ledger.continued_at
        has_passed_loss = continued_at is None
        while read := await asyncio.to_thread(_next_slice, operations):
            for each in read:
                self.operations += 1
                if continued_at is not None and not has_passed_loss:
                    if has_passed_loss := each.logged.entry >= continued_at.first:
                        self.metadata.pass_loss(continued_at.epoch)
                    else:
                        self.ordering_at_loss = each.logged.ordering
                if isinstance(each.operation, CheckpointOperation):
                    if self._take_checkpoint(each.operation, starts_log=self.operations == 1):
                        self.metadata.restore(await asyncio.to_thread(decode_snapshot, self._snapshot_parts))
                        self._restored = True
                else:
                    self._replay(each.operation, each.logged)
        if self._restored:
            self.told_nothing = False
        if continued_at is not None and not has_passed_loss:
            self.metadata.pass_loss(continued_at.epoch)

    def _read(self, ledger: Ledger) -> Iterator[_ReadOperation]:
        """Read all operations of the log. Blocks, so it must not run on the event loop."""
        for stored in ledger.recover():
            for logged in self.frames.read(stored.entry, stored.payload):
                yield _ReadOperation(logged, data_frames.decode_operation(memoryview(logged.content)))

    def _replay(self, operation: Operation, logged: LoggedOperation) -> None:
        if self.has_cut_checkpoint:
            raise CorruptError(f"the checkpoint at the start of the log of {self._name} is incomplete")
        self.told_nothing = False
        if isinstance(operation, AppendOperation):
            self._append(operation, logged)
        else:
            self.metadata.apply(operation, logged.entry, logged.ordering)()

    def restore(self, snapshot: ContainerSnapshot) -> None:
        """Start from a snapshot of tier 2, if the log told nothing. Tier 2 has all bytes up to the lengths in it."""
        self.metadata.restore(snapshot, in_tier_2=True)
        self._collect_dirty()

    @property
    def _name(self) -> str:
        return f"container {self.metadata.container}"

    def _take_checkpoint(self, operation: CheckpointOperation, *, starts_log: bool) -> bool:
        """Collect the checkpoint at the truncation point. Later checkpoints are skipped: the replay has their state.

        Returns whether the snapshot is complete with this part.
        """
        if self._restored or not (starts_log or self._snapshot_parts):
            return False
        if operation.part == 0:
            self._snapshot_parts = []  # the parts before are from an interrupted restoration
        if operation.part != len(self._snapshot_parts):
            raise CorruptError(f"the checkpoint of {self._name} lacks part {len(self._snapshot_parts)}")
        self._snapshot_parts.append(bytes(operation.snapshot))
        return operation.last

    def _append(self, operation: AppendOperation, logged: LoggedOperation) -> None:
        segment = self.metadata.by_number(operation.number)
        accepted = segment.accepted
        if operation.offset != accepted.length:
            raise CorruptError(
                f"the log of {self._name} appends to {segment.name} at {operation.offset}, its length is "
                f"{accepted.length}"
            )
        length = len(operation.data)
        previous_number = segment.attribute(operation.writer_id)
        end = operation.offset + length
        self.metadata.append(
            segment, end, operation.writer_id, operation.event_number, operation.event_count, operation.now_ms
        )
        settle_replayed_append(segment, end)
        if not length:
            return
        mark = (operation.writer_id, previous_number, operation.event_count)
        segment.index.add(operation.offset, self._pool.promise(length, logged.position), logged.entry, mark)
        segment.times.note(operation.offset, logged.ordering)

    def _collect_dirty(self) -> None:
        now_s = self._clock.monotonic_s()
        for segment in self.metadata.segments.values():
            if segment.untiered_bytes or segment.accepted.start_offset:
                self.dirty[segment.number] = segment
                segment.untiered_since_s = now_s


def _next_slice(operations: Iterator[_ReadOperation]) -> list[_ReadOperation]:
    """Read the operations to apply at once; none at the end of the log."""
    read: list[_ReadOperation] = []
    read_bytes = 0
    for each in islice(operations, OPERATIONS_PER_SLICE):
        read.append(each)
        read_bytes += len(each.logged.content)
        if read_bytes >= SLICE_BYTES:
            break
    return read


# Snapshots of a container's metadata in its log. A recovery starts at one, so the log before it can be truncated.
#
# A checkpoint becomes the truncation point once tier 2 has every byte that was logged before it. A recovery can
# therefore assume that tier 2 has each segment up to its length in the snapshot.

CHECKPOINT_EVERY_BYTES: Final = 64 << 20
CHECKPOINTS_PER_SHARE: Final = 4
"""On a small volume a container's share of the log is small. It must not fill up before the first checkpoint."""

CHECKPOINTS_KEPT_MAX: Final = 64
"""Bounds the memory for checkpoints that cannot become the truncation point while tier 2 does not answer."""


class Checkpoints:
    """The checkpoints in one container's log that are later than its truncation point."""

    def __init__(self, container: SegmentContainer, every_bytes: int = CHECKPOINT_EVERY_BYTES) -> None:
        self._container = container
        self._every_bytes = every_bytes
        self._newest = -1  # the first entry of the checkpoint that was logged last
        self._truncated_before = -1
        self._held_bytes_after = 0
        self._durable: deque[int] = deque()

    @property
    def due(self) -> bool:
        """Whether enough was logged since the last one, or this container keeps the journal from freeing space."""
        ledger = self._container.log.ledger
        every_bytes = min(self._every_bytes, self._container.log_room.container_bytes_max // CHECKPOINTS_PER_SHARE)
        if ledger.held_bytes - self._held_bytes_after >= every_bytes:
            return True
        # Space may also be kept by an idle container. One checkpoint at a time is enough for it.
        return ledger.wants_truncation and self._newest <= self._truncated_before

    def write(self) -> None:
        """Log a checkpoint of the current state."""
        container = self._container
        first = container.log.flush()  # a truncation point must be the start of a frame
        parts = list(encode_snapshot(container.metadata.snapshot()))
        for part, snapshot in enumerate(parts):
            last = part == len(parts) - 1
            operation = data_frames.CheckpointOperation(part, last, memoryview(snapshot))
            reached = _CheckpointReached(self._durable, first if last else None)
            container.log.append(data_frames.encode_operation(operation), reached)
        self._newest = first
        self._held_bytes_after = container.log.ledger.held_bytes
        while len(self._durable) > CHECKPOINTS_KEPT_MAX:
            del self._durable[1]  # not the oldest: it is the first that becomes usable

    def truncate_log(self) -> bool:
        """Truncate the log to the newest checkpoint before which tier 2 lacks nothing. Returns whether there is one."""
        dirty = self._container.dirty.values()
        needed = [entry for segment in dirty if (entry := segment.oldest_untiered_entry()) is not None]
        oldest_needed = min(needed, default=None)
        usable: int | None = None
        while self._durable and self._keeps(self._durable[0], oldest_needed):
            usable = self._durable.popleft()
        if usable is None:
            return False
        ledger = self._container.log.ledger
        held_bytes = ledger.held_bytes
        self._container.log.truncate(usable)
        self._truncated_before = usable
        self._held_bytes_after -= held_bytes - ledger.held_bytes
        return True

    @staticmethod
    def _keeps(checkpoint: int, oldest_needed: int | None) -> bool:
        """Whether a log that begins at a checkpoint still has the oldest entry that tier 2 lacks."""
        return oldest_needed is None or checkpoint <= oldest_needed


class _CheckpointReached:
    __slots__ = ("_durable", "_first")

    def __init__(self, durable: deque[int], first: int | None) -> None:
        self._durable = durable
        self._first = first

    def __call__(self, error: HeadraceError | None) -> None:
        if error is None and self._first is not None:
            self._durable.append(self._first)

"""Snapshots of a container's metadata in its log. A recovery starts at one, so the log before it can be truncated.

A checkpoint becomes the truncation point once tier 2 has every byte that was logged before it. A recovery can therefore
assume that tier 2 has each segment up to its length in the snapshot.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.codec import data_frames
from headrace.codec.container_snapshots import encode_snapshot
from headrace.model.errors import HeadraceError
from headrace.segmentstore.containers.container import SegmentContainer

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

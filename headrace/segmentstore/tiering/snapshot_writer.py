"""Writes snapshots of one container's metadata to tier 2, at intervals of time.

A snapshot is taken at one moment, and written when the log has made durable everything up to that moment. The last one,
at a graceful shutdown, is exact: the container accepts nothing more, and a store without this volume can continue from
it without a loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, encode_snapshot
from headrace.model.backoff import doubled_pause
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.ports.clock import Clock
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.tiering.limits import StorageLimits
from headrace.segmentstore.tiering.retries import ends_container, reported_as_refusal
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot of the moment when `sequence` was the newest operation."""

    snapshot: ContainerSnapshot
    sequence: int
    changes: int
    taken_s: float


class SnapshotWriter:
    """One per container, driven by its storage writer. `covered`: the pointer tells all that the container is now.

    `on_written` is called with a snapshot that tier 2 has now.
    """

    def __init__(
        self,
        container: SegmentContainer,
        snapshots: SnapshotStore,
        clock: Clock,
        limits: StorageLimits,
        on_written: Callable[[ContainerSnapshot], None],
        *,
        covered: bool,
    ) -> None:
        self._container = container
        self._snapshots = snapshots
        self._clock = clock
        self._limits = limits
        self._on_written = on_written
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
        parts = list(encode_snapshot(replace(metadata.stored_snapshot(), ordering=log.current_ordering)))
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

"""The containers of one segment store process, and the journal, cache and tier 2 that they share.

This module finds the container of a segment, and is independent of connections, claims and AWS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from headrace.model.containers import OpeningProgress, OpeningStep, SnapshotPointer
from headrace.model.errors import FencedError, HeadraceError
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import is_transient_segment_name
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.ledger import LedgerStore
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.scaling_reports import ScalingReports
from headrace.segmentstore.cache.block_pool import BLOCK_BYTES, BlockPool
from headrace.segmentstore.connections.read_processor import HeldReads
from headrace.segmentstore.connections.token_checks import TokenChecks
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.log_room import LogRoom
from headrace.segmentstore.containers.operation_log import OrderingClock
from headrace.segmentstore.lease_gate import LeaseGate
from headrace.segmentstore.metrics import StoreMetrics
from headrace.segmentstore.owned_container import ContainerOpening, OwnedContainer, SharedParts, drop_past_log
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tables.table_store import TableMemory
from headrace.segmentstore.tiering.compactor import CompactionBudget
from headrace.segmentstore.tiering.range_cache import RangeCache
from headrace.segmentstore.tiering.storage_limits import StorageLimits, Throttle
from headrace.segmentstore.tiering.storage_writer import StorageWriter

# The shutdown of a store: its deadline, and the flushes that have until then.


class Shutdown:
    """`begin` sets the deadline."""

    def __init__(self) -> None:
        self._ends: float | None = None  # in the time of the event loop

    def begin(self, deadline_s: float) -> None:
        self._ends = asyncio.get_running_loop().time() + deadline_s

    @property
    def has_begun(self) -> bool:
        return self._ends is not None

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._ends is not None and asyncio.get_running_loop().time() >= self._ends

    async def drain(self, writer: StorageWriter, deadline_s: float) -> bool:
        """Drain a container that is handed over; as `StorageWriter.drain`.

        If only the outcome of the last write is missing at the deadline, a shutdown lends its time.

        Raises:
            TimeoutError: the deadline has passed.
        """
        drain = asyncio.ensure_future(writer.drain())
        try:
            await asyncio.wait([drain], timeout=deadline_s)
            if self._ends is not None and not writer.may_resume:
                await asyncio.wait([drain], timeout=self._ends - asyncio.get_running_loop().time())
            async with asyncio.timeout(0):
                return await drain
        finally:
            drain.cancel()


async def flush_by(
    deadline_s: float, flushes: Mapping[asyncio.Future[bool], OwnedContainer], others: Collection[asyncio.Future[Any]]
) -> list[int]:
    """Wait until flushes and others have ended, or cancel those flushes that are late.

    Returns the containers of which tier 2 has everything.
    """
    if not (flushes or others):
        return []
    _, late = await asyncio.wait([*others, *flushes], timeout=deadline_s)
    for flush in late.intersection(flushes):
        flush.cancel()
    ended = await asyncio.gather(*flushes, return_exceptions=True)
    flushed = []
    for each, result in zip(flushes.values(), ended, strict=True):
        if result is True:
            flushed.append(each.container.container)
        else:  # the next start needs the log, or loses the data that is not in tier 2
            _log.warning("event=close_incomplete container=%d error=%r", each.container.container, result)
    return flushed


# Requests that wait for a container which this store is opening, or is about to leave to another store.
#
# Without the wait a client gets WrongHost, looks the owner up and finds this store again, until the move is over. Some
# clients try only a few times.

MOVE_WAIT_S: Final = 10.0
"""The longest wait of a request. It is less than the 30 s time-out of clients."""

LEFT_S: Final = 1.0
"""How long a container counts as moving after this store has left it: until its next owner has claimed it, which it
tries twice a second. Before that, clients that look up the owner find this store."""


class MovingContainers:
    """`is_busy` tells whether the store is opening, handing over or releasing a container."""

    def __init__(self, is_busy: Callable[[int], bool]) -> None:
        self._is_busy = is_busy
        self._left: dict[int, asyncio.TimerHandle] = {}
        self._news = asyncio.Event()
        self._ended = False

    def is_moving(self, container: int) -> bool:
        """Whether a request may wait for the container."""
        return not self._ended and (container in self._left or self._is_busy(container))

    async def wait(self, container: int) -> None:
        """Return when the container no longer moves, at the latest after `MOVE_WAIT_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MOVE_WAIT_S):
                while self.is_moving(container):
                    await self._news.wait()

    def changed(self) -> None:
        """Wake the requests, because a container may move no longer."""
        self._news.set()
        self._news = asyncio.Event()

    def left(self, container: int) -> None:
        """Note that nothing is left of a container that was served or opened here."""
        if not self._ended:
            self._forget(container)
            self._left[container] = asyncio.get_running_loop().call_later(LEFT_S, self._next_owner_known, container)

    def served(self, container: int) -> None:
        """Note that a container is served here."""
        self._forget(container)
        self.changed()

    def end(self) -> None:
        """Let no request wait any more, because the store shuts down."""
        self._ended = True
        for container in list(self._left):
            self._forget(container)
        self.changed()

    def _next_owner_known(self, container: int) -> None:
        del self._left[container]
        self.changed()

    def _forget(self, container: int) -> None:
        timer = self._left.pop(container, None)
        if timer is not None:
            timer.cancel()


_log = logging.getLogger(__name__)

READING_THREADS: Final = 4
"""Concurrent requests of historical readers to DynamoDB. Each takes milliseconds, and only readers wait for them."""

DRAIN_S: Final = MOVE_WAIT_S
"""The longest time without an owner in a hand-over, once most was flushed: requests wait as long, and then look up the
owner again. If tier 2 stops answering in this time, the container is served here again."""


class SegmentStore:
    """`on_failure` is called when a container stops for good. The sizes of the cache are as for `BlockPool`.

    With `needs_tokens`, it refuses requests without a delegation token: `tokens` gets the keys.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        cache_bytes: int,
        clock: Clock,
        metadata_store: MetadataStore,
        chunk_storage: ChunkStorage,
        *,
        container_count: int,
        s3_containers: int = 0,
        block_bytes: int = BLOCK_BYTES,
        limits: StorageLimits | None = None,
        table_limits: TableLimits | None = None,
        on_failure: Callable[[SegmentContainer, HeadraceError], None] | None = None,
        scaling_reports: ScalingReports | None = None,
        needs_tokens: bool = False,
    ) -> None:
        self.gate = LeaseGate(clock)
        self.pool = BlockPool(cache_bytes, block_bytes, self._hurry)
        self.clock = clock
        self.layout = ContainerLayout(container_count, s3_containers)
        self.metrics = StoreMetrics()
        self.tokens = TokenChecks(clock, self.metrics) if needs_tokens else None
        self.held_reads = HeldReads(clock)
        self.ledgers = ledgers
        limits = limits or StorageLimits()
        self.table_memory = TableMemory(chunk_storage, table_limits or TableLimits())
        self.read_cache = RangeCache(chunk_storage, limits.read_cache_bytes)
        self._owned: dict[int, OwnedContainer] = {}
        self._log_room = LogRoom(ledgers.space, lambda: (each.container.log.ledger for each in self._owned.values()))
        self._parts = SharedParts(
            ledgers,
            self.pool,
            clock,
            self.gate,
            OrderingClock(clock),
            metadata_store,
            chunk_storage,
            limits,
            self.table_memory,
            self.read_cache,
            CompactionBudget(limits.compaction_bytes_per_s, clock),
            self._log_room,
            scaling_reports,
            ThreadPoolExecutor(READING_THREADS, thread_name_prefix="directory-reader"),
        )
        self._on_failure = on_failure
        self._openings: dict[int, ContainerOpening] = {}
        # Hand-overs after the stop of the container: its held acknowledgements need its claim.
        self._handed_over: dict[int, tuple[OwnedContainer, asyncio.Future[bool]]] = {}
        self._preparing: set[asyncio.Future[None]] = set()  # hand-overs of containers that are still served
        self._retiring: dict[int, asyncio.Task[None]] = {}
        self._moving = MovingContainers(self._is_busy)
        self.throttle = Throttle(self.pool, self._log_room, lambda: [each.container for each in self._owned.values()])
        self._background: set[asyncio.Task[None]] = set()
        self._shutdown = Shutdown()

    @property
    def owned(self) -> Mapping[int, OwnedContainer]:
        return self._owned

    @property
    def flush_lag_s(self) -> float:
        """The age of the oldest byte to flush, of all containers."""
        return max((owned.container.flush_lag_s for owned in self.owned.values()), default=0.0)

    @property
    def openings(self) -> Mapping[int, ContainerOpening]:
        """Containers that are being opened."""
        return self._openings

    @property
    def claims(self) -> Mapping[int, int]:
        """The epochs of the containers that this store serves, hands over or opens."""
        served = [*(owned for owned, _ in self._handed_over.values()), *self._owned.values()]
        opened = {each.container: each.epoch for each in self._openings.values() if each.epoch is not None}
        return opened | {each.container.container: each.container.epoch for each in served}

    def lose_claim(self, container: int, epoch: int, error: FencedError) -> None:
        """Stop a container that is served under the claim of this epoch, so that it acknowledges nothing more.

        A container that is being opened is not stopped: its claim is confirmed before it is served.
        """
        owned = self._owned.get(container) or self._handed_over.get(container, (None,))[0]
        if owned is not None and owned.container.epoch == epoch:
            owned.container.log.fail(error)

    def is_free(self, container: int) -> bool:
        """Whether this process has nothing of the container in memory, so that it may be opened."""
        served = container in self._owned or container in self._handed_over
        return not (served or container in self._openings or container in self._retiring)

    def begin_opening(self, container: int, progress: OpeningProgress | None = None) -> ContainerOpening:
        """Begin to open a container that is free. The caller ends the opening with `serve` or `cancel_opening`.

        `progress` has the earlier failures of a container that has stopped.
        """
        opening = ContainerOpening(self._parts, container, self._container_failed, progress)
        self._openings[container] = opening
        return opening

    def serve(self, opening: ContainerOpening) -> None:
        """Serve a container whose claim has just been confirmed."""
        del self._openings[opening.container]
        owned = self._owned[opening.container] = opening.start()
        self._log_room.look(self.clock.monotonic_s())
        owned.container.rates.start(owned.container.metadata.segments.values())
        self._remove_transients(owned.container)
        self._moving.served(opening.container)

    async def opening_failed(self, opening: ContainerOpening, error: Exception) -> None:
        """Note that the current step of an opening has failed; raises as `ContainerOpening.undo`."""
        await opening.failed(error)
        self._moving.changed()  # no request waits for a damaged container

    def cancel_opening(self, opening: ContainerOpening) -> None:
        """Undo an opening in the background; the container is free when that is done."""
        if self._openings.get(opening.container) is opening:
            del self._openings[opening.container]
            self._retire(opening.container, opening.undo())

    async def retired(self, container: int) -> None:
        """Wait until nothing is left in memory of a container that has failed or whose opening was cancelled."""
        while (task := self._retiring.get(container)) is not None:
            await asyncio.wait([task])

    async def open_container(self, container: int, epoch: int) -> None:
        """Recover a container that was claimed with `epoch` from its log or, without one, from tier 2; then serve it.

        Makes one attempt, and leaves nothing in memory if it fails. Discards a log from before a takeover.

        Raises:
            CorruptError: the log is damaged, or the data in tier 2 is inconsistent.
            FencedError: the log belongs to a newer owner.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        await self.retired(container)
        opening = self.begin_opening(container)
        try:
            opening.claimed(epoch)
            while opening.progress.step is not OpeningStep.CONFIRM:
                await opening.advance()
        except BaseException:
            self.cancel_opening(opening)
            await self.retired(container)
            raise
        self.serve(opening)

    async def drop_past_log(self, container: int, pointer: SnapshotPointer | None) -> None:
        """Discard the container's log on this volume if a newer epoch has taken over the container since."""
        await drop_past_log(self.ledgers, container, pointer)

    @property
    def logs_at_rest(self) -> list[int]:
        """Containers with a log on this volume that are not served. Their logs keep the journal from freeing space."""
        return sorted(self.ledgers.epochs().keys() - self._owned.keys())

    async def hand_over(self, container: int, deadline_s: float) -> bool:
        """Flush a container to tier 2, stop serving it, and flush the rest.

        Returns whether another store can take over. If tier 2 does not answer, the container is served as before, also
        if it was stopped already. Only if the outcome of the last write to tier 2 is unknown, it must be opened from
        its log again. Clients get WrongHost from its stop on, and replies to the operations that were accepted.
        """
        owned = self._owned.get(container)
        if owned is None:
            return True
        drain_s = await self._prepare_hand_over(owned, deadline_s)
        if drain_s is None or self._shutdown.has_begun or self._owned.get(container) is not owned:
            return False
        del self._owned[container]
        work = asyncio.ensure_future(self._hand_over(owned, drain_s))
        self._handed_over[container] = owned, work
        try:
            return await work
        finally:
            del self._handed_over[container]
            if container in self._owned:
                self._moving.served(container)
            else:
                self._moving.left(container)

    async def _prepare_hand_over(self, owned: OwnedContainer, deadline_s: float) -> float | None:
        """Flush most of a container that is served. Returns how long the rest may take, or None if it must not begin.

        If appends arrive faster than tier 2 stores them, only the stop of the container lets the flush end.
        """
        preparing = asyncio.ensure_future(owned.writer.prepare_drain())
        self._preparing.add(preparing)
        try:
            await asyncio.wait([preparing], timeout=deadline_s)
        finally:
            self._preparing.discard(preparing)
            preparing.cancel()
        if not preparing.done():
            return None if owned.writer.is_retrying else deadline_s
        if preparing.cancelled() or preparing.exception() is not None:
            return None  # the store shuts down, or the container has stopped
        return min(deadline_s, DRAIN_S)

    async def _hand_over(self, owned: OwnedContainer, deadline_s: float) -> bool:
        container, started_s = owned.container.container, self.clock.monotonic_s()
        # First: a maintenance task that runs after `leave` would fail the container with its error.
        await owned.stop_upkeep()
        segment_container = owned.container
        segment_container.refuse_for_handover()
        clean, is_lost = False, False
        try:
            clean = await self._shutdown.drain(owned.writer, deadline_s)
        except (HeadraceError, TimeoutError) as error:
            _log.error("event=hand_over_failed container=%d error=%r", container, error)
            is_lost = isinstance(error, FencedError)
        if not (clean or is_lost or self._shutdown.is_over) and owned.writer.may_resume:
            self._owned[container] = owned
            owned.resume()
            _log.warning("event=hand_over_undone container=%d epoch=%d", container, segment_container.epoch)
            return False
        await owned.writer.stop()
        await owned.backfill.stop()
        segment_container.log.end(FencedError(f"container {container} was handed over: look up its owner again"))
        owned.tables.cancel()
        if not clean:
            self._retire(container, self._release(owned))
            await self.retired(container)
            return False
        segment_container.metadata.release_memory()
        await self.ledgers.forget(container)
        seconds = self.clock.monotonic_s() - started_s
        _log.info("event=handed_over container=%d epoch=%d seconds=%.3f", container, segment_container.epoch, seconds)
        return True

    def _remove_transients(self, container: SegmentContainer) -> None:
        """Remove the transient segments of connections that ended with the former process."""
        for name in filter(is_transient_segment_name, container.metadata.segments):
            self.run_background(container.delete(name))

    def owner_of(self, segment_name: str) -> OwnedContainer:
        """The container of a segment.

        Raises:
            FencedError: another store owns it.
        """
        container = self.layout.container_of_segment(segment_name)
        owned = self._owned.get(container)
        if owned is None:
            raise FencedError(f"this store does not own container {container} of segment {segment_name}")
        return owned

    def is_moving(self, segment_name: str) -> bool:
        """Whether the container of a segment is opened or left now, so that a request may wait for the end of that.

        A container whose log or whose data in tier 2 is damaged is not waited for.
        """
        container = self.layout.container_of_segment(segment_name)
        return container not in self._owned and self._moving.is_moving(container)

    async def settled_owner_of(self, segment_name: str) -> OwnedContainer:
        """The container of a segment, after a wait of at most `MOVE_WAIT_S` while it is moving.

        Raises:
            FencedError: another store owns it, or the wait was in vain.
        """
        await self._moving.wait(self.layout.container_of_segment(segment_name))
        return self.owner_of(segment_name)

    def end_waits(self) -> None:
        """Let no request wait for a moving container any more, because the store shuts down."""
        self._moving.end()

    def tick_rates(self) -> None:
        """Update the rates of the segments; call it about every `model.rates.TICK_S`."""
        self._log_room.look(self.clock.monotonic_s())
        for each in self._owned.values():
            each.container.rates.tick()

    def run_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background that belongs to no connection and that no caller waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("event=background_work_failed error=%r", error)

    async def close(self, deadline_s: float) -> None:
        """Flush what the deadline allows, checkpoint, write the last snapshots, and stop serving.

        Hand-overs and openings that end meanwhile have the same deadline. So has the flush of a container whose
        hand-over is undone.
        """
        self._shutdown.begin(deadline_s)
        self._moving.end()
        for task in list(self._background):
            task.cancel()
        for preparing in self._preparing:
            preparing.cancel()
        for opening in list(self._openings.values()):
            self.cancel_opening(opening)
        flushes: dict[asyncio.Future[bool], OwnedContainer] = {}
        for each in self._owned.values():
            flushes[asyncio.ensure_future(_drain(each))] = each
        for each, handing_over in self._handed_over.values():
            flushes[asyncio.ensure_future(self._drain_if_undone(each, handing_over))] = each
        flushed = await flush_by(deadline_s, flushes, list(self._retiring.values()))
        clean = [each for each in flushed if each in self._owned and not self.ledgers.needs_lease(each)]
        for each in list(self._owned.values()):
            await each.stop()  # a flush that was cut off may have left some of its tasks
            each.container.log.close()
        # Other stores or S3 hold these logs, too. Without this, the next owner would need them.
        forgotten = await asyncio.gather(*map(self.ledgers.forget, clean), return_exceptions=True)
        for container, outcome in zip(clean, forgotten, strict=True):
            if outcome is not None:  # nothing is lost: the next owner recovers a log that it does not need
                _log.warning("event=log_not_ended container=%d error=%r", container, outcome)
        self._owned.clear()
        self._parts.reading_threads.shutdown(wait=False, cancel_futures=True)

    async def _drain_if_undone(self, owned: OwnedContainer, handing_over: asyncio.Future[bool]) -> bool:
        """Wait for a hand-over, and flush the container if it is served here again. Returns whether tier 2 has all."""
        await asyncio.wait([handing_over])
        return await _drain(owned) if owned.container.container in self._owned else handing_over.result()

    def _hurry(self) -> None:
        for each in self._owned.values():
            each.writer.wake()

    def _container_failed(self, container: SegmentContainer, error: HeadraceError) -> None:
        owned = self._owned.get(container.container)
        if owned is not None and owned.container is container:
            del self._owned[container.container]
            owned.tables.cancel()
            self._retire(container.container, self._release(owned))
        if self._on_failure is not None:
            self._on_failure(container, error)

    async def _release(self, owned: OwnedContainer) -> None:
        """Release everything of a container that has stopped, so that it can be opened from its log again."""
        await owned.stop()
        # Before the memory is released: the journal may still write from it.
        await self.ledgers.release(owned.container.container)
        owned.container.metadata.release_memory()

    def _retire(self, container: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._retiring[container] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._retired, container))

    def _retired(self, container: int, task: asyncio.Task[None]) -> None:
        del self._retiring[container]
        self._moving.left(container)
        self._background_done(task)

    def _is_busy(self, container: int) -> bool:
        opening = self._openings.get(container)
        if opening is not None:
            return not opening.progress.quarantined
        return container in self._handed_over or container in self._retiring


async def _drain(owned: OwnedContainer) -> bool:
    await owned.stop_upkeep()
    # As in a hand-over: what a request that is still in progress did from now on would not be flushed. The listener has
    # ended all requests before, but the flush should not depend on that.
    owned.container.refuse_for_handover()
    return await owned.writer.drain()

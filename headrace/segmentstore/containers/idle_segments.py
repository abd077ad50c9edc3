"""Evicts idle segments from a container's memory, and activates them when they are needed again.

To evict a segment, its exact state is written to a record of the metadata store; then the log gets an operation. An
activation logs the whole state of the segment, so that later operations can refer to it by number. The record of a
segment in memory is out of date and is never read. `tiering/segment_records.py` decides which segments are evicted,
and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from headrace.codec import data_frames
from headrace.codec.container_snapshots import SegmentSnapshot, encode_segment
from headrace.metadata.evicted_segment import without_number
from headrace.model.names import is_transient_segment_name
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import OperationLog
from headrace.segmentstore.containers.segment import RecordedState, Segment
from headrace.segmentstore.containers.settlements import unwatched
from headrace.segmentstore.containers.wait_queue import WaitQueue
from headrace.segmentstore.containers.writer_expiry import WriterExpiry


@dataclass(frozen=True, slots=True)
class EvictedSegment:
    """The state in the record of an evicted segment, and what to compare with at its next eviction."""

    state: SegmentSnapshot
    recorded: RecordedState


FindEvicted = Callable[[str], Awaitable[EvictedSegment | None]]


class IdleSegments:
    """Evictions and activations of one container's segments.

    `find_record` looks up the record of an evicted segment. `recording` maps the numbers of segments to the write of
    their record; their removal waits for that write.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        log: OperationLog,
        dirty: Mapping[int, Segment],
        writers: WriterExpiry,
        check_log_space: Callable[[], None],
        find_record: FindEvicted,
    ) -> None:
        self.recording: dict[int, asyncio.Future[None]] = {}
        self._metadata = metadata
        self._log = log
        self._dirty = dirty
        self._writers = writers
        self._check_log_space = check_log_space
        self._find_record = find_record
        self._queues: dict[str, WaitQueue[bool]] = {}
        self._activations: set[asyncio.Task[None]] = set()

    def may_leave(self, segment: Segment) -> bool:
        """Whether no operation on the segment is in progress, here or in tier 2."""
        return (
            segment.at_rest
            and segment.number not in self._dirty
            and segment.number not in self.recording
            and not is_transient_segment_name(segment.name)
        )

    def state_of(self, segment: Segment) -> SegmentSnapshot:
        """The state to write to the record of a segment before it is evicted. Later changes do not affect it."""
        state = without_number(segment.snapshot())
        own, gone = frozenset(state.client_attributes), self._writers.gone_of(segment)
        return replace(state, attributes=dict(state.attributes), client_attributes=own, writers_gone=gone)

    def evict(self, segment: Segment, state: bytes, forget: Callable[[Segment], bool]) -> bool:
        """Evict a segment whose record is written. Returns False if it is in use, or has changed since.

        `state` is the encoded `state_of` that the record contains. `forget` discards what tables keep of the segment,
        or returns False while they need it.

        Raises:
            UnavailableError, FencedError: the container has stopped.
        """
        if not self.may_leave(segment) or encode_segment(self.state_of(segment)) != state:
            return False
        if not forget(segment):
            return False
        self._apply(data_frames.EvictOperation(segment.number))
        self._writers.evicted(segment)
        return True

    def announce_records(self) -> None:
        """Log that there may be records, before the first one is written. Otherwise deletions would not remove it."""
        if not self._metadata.has_records:
            self._apply(data_frames.EvictOperation(data_frames.NO_SEGMENT))

    def is_waited_for(self, name: str) -> bool:
        """Whether callers of `activated` have not gone on yet, although the segment may be in memory already."""
        return name in self._queues

    async def activated(self, name: str) -> bool:
        """Activate a segment that is not in memory; concurrent callers share one look-up. Returns whether it exists.

        Callers go on in the order of their calls. Raises as `SegmentContainer.find`.
        """
        queue = self._queues.get(name)
        if queue is None or (queue.is_settled and name not in self._metadata.segments):
            queue = self._queues[name] = WaitQueue()
            activation = asyncio.ensure_future(self._activate(name, queue))
            self._activations.add(activation)
            activation.add_done_callback(self._activations.discard)
        try:
            return await queue.join(asyncio.get_running_loop().create_future())
        finally:
            self._leave(name, queue)

    async def _activate(self, name: str, queue: WaitQueue[bool]) -> None:
        try:
            outcome: bool | Exception = await self._look_up(name)
        except Exception as error:  # noqa: BLE001 - the waiting callers must get every error
            outcome = error if name not in self._metadata.segments else False  # created meanwhile: needs no record
        queue.settle(partial(_set, outcome))
        self._leave(name, queue)

    def _leave(self, name: str, queue: WaitQueue[bool]) -> None:
        if queue.is_settled and queue.is_empty and self._queues.get(name) is queue:
            del self._queues[name]

    async def _look_up(self, name: str) -> bool:
        record = await self._find_record(name)
        if record is None or name in self._metadata.segments or not self._metadata.may_be_evicted(name):
            return False  # there was none, or it was created meanwhile: what was found are runs of the new one
        self._check_log_space()
        # A new number: after the loss of a log another segment may have got the old one.
        state = encode_segment(replace(record.state, number=self._metadata.next_number, writers_gone=None))
        self._apply(data_frames.ActivateOperation(memoryview(state)))
        segment = self._metadata.segments[name]
        segment.recorded = record.recorded
        self._writers.activated(segment, record.state.writers_gone)
        return True

    def _apply(self, operation: data_frames.EvictOperation | data_frames.ActivateOperation) -> None:
        """Log and apply an operation without waiting: if it is lost, a recovery finds the segment as it was before."""
        entry = self._log.append(data_frames.encode_operation(operation), unwatched)
        self._metadata.apply(operation, entry, self._log.current_ordering)()


def _set(outcome: bool | Exception, future: asyncio.Future[bool]) -> None:
    if future.done():  # its caller has gone
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

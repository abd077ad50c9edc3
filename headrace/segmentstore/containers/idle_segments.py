"""Segments leave a container's memory when nobody uses them, and come back when somebody asks.

One that leaves has its exact state in a record of the metadata store, and then an operation in the log that says so;
one that comes back is logged with its whole state, so that the log can speak of it by number. What is in a record of a
segment in memory is out of date and is never looked at. Which segments leave, and when, `storage/evictor.py` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from headrace.codec import data_frames
from headrace.codec.container_snapshots import SegmentSnapshot, encode_segment
from headrace.codec.records.segment_record import without_number
from headrace.model.errors import UnavailableError
from headrace.model.names import is_transient_segment_name
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import OperationLog
from headrace.segmentstore.containers.pending import unwatched
from headrace.segmentstore.containers.segment import RecordedState, Segment
from headrace.segmentstore.containers.writer_expiry import WriterExpiry


@dataclass(frozen=True, slots=True)
class EvictedSegment:
    """A segment as its record has it, and what to compare with when it leaves memory again."""

    state: SegmentSnapshot
    recorded: RecordedState


FindEvicted = Callable[[str], Awaitable[EvictedSegment | None]]


class IdleSegments:
    """The ways out of and into the memory of one container.

    Whoever opens the container sets `find_record`, which looks up the record of a segment that is not in memory, and
    `forget`, which lets go of what others keep of a segment, or answers False while they need it.
    `recording` has, by number, the segments whose record is being written: their removal waits for that.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        log: OperationLog,
        dirty: Mapping[int, Segment],
        writers: WriterExpiry,
        check_log_space: Callable[[], None],
    ) -> None:
        self.find_record: FindEvicted | None = None
        self.forget: Callable[[Segment], bool] | None = None
        self.recording: dict[int, asyncio.Future[None]] = {}
        self._metadata = metadata
        self._log = log
        self._dirty = dirty
        self._writers = writers
        self._check_log_space = check_log_space
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}
        self._activations: set[asyncio.Task[None]] = set()

    def may_leave(self, segment: Segment) -> bool:
        """Whether nothing is under way on the segment, here or in tier 2."""
        return (
            segment.at_rest
            and segment.number not in self._dirty
            and segment.number not in self.recording
            and not is_transient_segment_name(segment.name)
        )

    def state_of(self, segment: Segment) -> SegmentSnapshot:
        """What the record of a segment has to tell when the segment leaves memory."""
        return replace(without_number(segment.snapshot()), writers_gone=self._writers.gone_of(segment))

    def evict(self, segment: Segment, state: bytes) -> bool:
        """Let go of a segment whose record is written; False if it is in use, or not what the record tells any more.

        `state` is what `encode_segment` made of its `state_of`.

        Raises:
            UnavailableError, FencedError: the container has stopped.
        """
        if not self.may_leave(segment) or encode_segment(self.state_of(segment)) != state:
            return False
        if self.forget is not None and not self.forget(segment):
            return False
        self._apply(data_frames.EvictOperation(segment.number))
        self._writers.evicted(segment)
        return True

    def announce_records(self) -> None:
        """Have it in the log that there may be records before the first one is written: it would never be removed."""
        if not self._metadata.has_records:
            self._apply(data_frames.EvictOperation(data_frames.NO_SEGMENT))

    async def activated(self, name: str) -> bool:
        """Bring a segment back that is not in memory, once for all who ask; whether there was one.

        Raises as `SegmentContainer.find`.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(name, [])
        waiting.append(future)
        if len(waiting) == 1:
            activation = asyncio.ensure_future(self._activate(name))
            self._activations.add(activation)
            activation.add_done_callback(self._activations.discard)
        return await future

    async def _activate(self, name: str) -> None:
        """Those who wait go on in the order in which they asked, and before anybody who asks later."""
        try:
            found: bool | Exception = await self._look_up(name)
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            found = error
        for future in self._waiting.pop(name):
            if future.done():
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)

    async def _look_up(self, name: str) -> bool:
        if self.find_record is None:
            raise UnavailableError(f"nobody can look up the segments of container {self._metadata.container} yet")
        found = await self.find_record(name)
        if found is None:
            return False
        self._check_log_space()
        # A new number: after the loss of a log others may have got the one that it had.
        state = encode_segment(replace(found.state, number=self._metadata.next_number, writers_gone=None))
        self._apply(data_frames.ActivateOperation(memoryview(state)))
        segment = self._metadata.segments[name]
        segment.recorded = found.recorded
        self._writers.activated(segment, found.state.writers_gone)
        return True

    def _apply(self, operation: data_frames.EvictOperation | data_frames.ActivateOperation) -> None:
        """Nobody waits for these to be durable: without them a recovery finds the segment where it was."""
        entry = self._log.append(data_frames.encode_operation(operation), unwatched)
        self._metadata.apply(operation, entry, self._log.current_ordering)()

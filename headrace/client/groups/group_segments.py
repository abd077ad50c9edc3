"""The segments that one reader of a group owns: they are read at the same time, into one bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.closing import close_all
from headrace.client.groups.group_synchronizer import END_UNBOUNDED
from headrace.client.reading.event_reader import (
    BATCHES_WAITING_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    WINDOWS_BYTES_TOTAL,
    AnyBatch,
    Assemble,
    ReaderOptions,
)
from headrace.client.reading.linked_history import LinkedHistory
from headrace.client.reading.recorded_successors import after_freeze, recorded_successors, truncated_length
from headrace.client.reading.segment_stream import SegmentStream
from headrace.client.segment_connections import SegmentConnections
from headrace.model.errors import HeadraceError, IllegalStateError, TruncatedError
from headrace.model.names import StreamSegmentName, segment_name
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import END_OF_SEGMENT

SUCCESSORS_TIMEOUT_S = 120.0
"""How long the controller may take to record what follows a segment that was sealed."""


class Following(NamedTuple):
    """What follows a segment: its successors with the ids of their predecessors, and their key ranges. Empty if reading
    ends with the segment."""

    predecessors: Mapping[StreamSegmentName, tuple[int, ...]] = {}
    ranges: Mapping[StreamSegmentName, KeyRange] = {}


class OwnedSegment:
    """A segment while this reader owns it.

    `position` is the offset after the last event that was processed, and `end` where the group stops (None: it goes on
    with the successors). `has_arrived` tells whether all events are in the queue. `following` is known when all were
    processed. `failure` is an error after which a repetition cannot succeed.
    """

    def __init__(self, segment: StreamSegmentName, position: int, end: int | None) -> None:
        self.segment = segment
        self.position = position
        self.end = end
        self.has_arrived = False
        self.following: Following | None = None
        self.failure: Exception | None = None
        self.oldest_us = 0
        self.task: asyncio.Task[None] | None = None

    def lag_ms(self, now_ms: float) -> int:
        """How long ago the oldest event that is not processed was stored; 0 if there is none."""
        return max(0, int(now_ms - self.oldest_us / 1000)) if self.oldest_us else 0


class Arrived(NamedTuple):
    """A batch of a segment and when it was stored; what follows the segment, after its last batch; or an error."""

    owned: OwnedSegment
    batch: AnyBatch | None = None
    stored_at_us: int = 0
    following: Following | None = None
    error: Exception | None = None


class OwnedSegments:
    """Reads the segments of one reader. `on_arrival` is called when `next_batch` may return something else than
    before."""

    def __init__(self, admin: AsyncAdmin, options: ReaderOptions, on_arrival: Callable[[], None], group: str) -> None:
        """`group` is the scoped name of the group, for messages."""
        self._admin = admin
        self._group = group
        self._options = options
        self._on_arrival = on_arrival
        self._connections: dict[tuple[str, str], SegmentConnections] = {}
        self._histories: dict[tuple[str, str], LinkedHistory] = {}
        self._queue: asyncio.Queue[Arrived] = asyncio.Queue(BATCHES_WAITING_MAX)
        self._assemble: Assemble | None = None
        self._stopped: set[asyncio.Task[None]] = set()
        self.owned: dict[StreamSegmentName, OwnedSegment] = {}

    def choose_form(self, assemble: Assemble) -> None:
        """Decides the form of all batches, before the first segment is read. Raises IllegalStateError if it is another
        one than before."""
        if self._assemble not in (None, assemble):
            raise IllegalStateError(
                "a reader returns either Arrow batches or events: close it, and open another reader of the group"
            )
        self._assemble = assemble

    @property
    def positions(self) -> dict[StreamSegmentName, int]:
        """The offsets after the processed events."""
        return {segment: owned.position for segment, owned in self.owned.items()}

    @property
    def read_to_end(self) -> dict[StreamSegmentName, Following]:
        """The segments of which all events were processed, with what follows each."""
        return {segment: owned.following for segment, owned in self.owned.items() if owned.following is not None}

    def lags_ms(self, now_ms: float) -> Mapping[StreamSegmentName, int]:
        """How far each segment is behind."""
        return {segment: owned.lag_ms(now_ms) for segment, owned in self.owned.items()}

    def begin(self, segment: StreamSegmentName, offset: int, end: int | None) -> None:
        """Starts to read a segment from an offset to its end, or to the offset `end`."""
        owned = self.owned[segment] = OwnedSegment(segment, offset, end)
        if end is not None and (offset == END_OF_SEGMENT or offset >= end):
            owned.following = Following()
            return
        owned.has_arrived = offset == END_OF_SEGMENT
        self._start(owned)

    def end(self, segment: StreamSegmentName) -> None:
        """Stops reading a segment. What has arrived of it is dropped."""
        task = self.owned.pop(segment).task
        if task is not None and not task.done():
            task.cancel()
            self._stopped.add(task)
            task.add_done_callback(self._stopped.discard)

    def end_all(self) -> None:
        """Stops reading all segments."""
        for segment in tuple(self.owned):
            self.end(segment)

    def next_batch(self) -> Arrived | None:
        """Returns the next batch that has arrived, None if there is none. Raises the error that ended a segment.

        If a repetition can succeed, the segment is then read again from its position. Otherwise each call raises the
        error, until the reader no longer owns the segment.
        """
        for owned in self.owned.values():
            if owned.failure is not None:
                raise owned.failure.with_traceback(None)  # else each call would make the traceback longer
        while not self._queue.empty():
            arrived = self._queue.get_nowait()
            owned = arrived.owned
            if self.owned.get(owned.segment) is not owned:
                continue
            if arrived.error is not None:
                self._failed(owned, arrived.error)
                raise arrived.error
            if arrived.batch is not None:
                owned.oldest_us = arrived.stored_at_us
                return arrived
            owned.following = arrived.following
            owned.oldest_us = 0
            return arrived
        return None

    async def close(self) -> None:
        tasks = [*self._stopped, *(each.task for each in self.owned.values() if each.task is not None)]
        self.end_all()
        connections, self._connections = self._connections, {}
        histories, self._histories = self._histories, {}
        await close_all(
            partial(asyncio.gather, *tasks, return_exceptions=True),
            *(each.close for each in connections.values()),
            *(each.close for each in histories.values()),
        )

    def _start(self, owned: OwnedSegment) -> None:
        owned.task = asyncio.get_running_loop().create_task(self._read(owned))

    def _failed(self, owned: OwnedSegment, error: Exception) -> None:
        if isinstance(error, HeadraceError) and error.retry != "never":
            self._start(owned)
        else:
            owned.failure = error

    async def _read(self, owned: OwnedSegment) -> None:
        try:
            if not owned.has_arrived:
                await self._read_events(owned)
                owned.has_arrived = True
            await self._put(Arrived(owned, following=await self._following(owned)))
        except TruncatedError as error:
            await self._put(Arrived(owned, error=self._explained(error)))
        except Exception as error:  # noqa: BLE001 - the next `next_batch` raises it
            await self._put(Arrived(owned, error=error))

    def _explained(self, error: TruncatedError) -> TruncatedError:
        """The error with what moves the group past the events that are gone."""
        message = (
            f"{error.message}. To move group {self._group} to the first event that is left: headrace group reset "
            f"{self._group} --to earliest. To skip such events always: on_truncation='skip'"
        )
        return TruncatedError(message, details=error.details, code=error.specific_code)

    async def _read_events(self, owned: OwnedSegment) -> None:
        segment = owned.segment
        assert self._assemble is not None, "segments are taken by calls for batches"
        window_bytes = WINDOWS_BYTES_TOTAL // max(1, len(self.owned))
        stream = SegmentStream(
            self._connections_to(segment),
            segment.segment_id,
            segment_name(segment.scope, segment.stream, segment.segment_id),
            start=owned.position,
            stop=None if owned.end == END_UNBOUNDED else owned.end,
            window_bytes=max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, window_bytes)),
            on_truncation=self._options.on_truncation,
            backoff=Backoff(self._options.give_up_after_s),
            assemble=self._assemble,
            truncated_length=partial(truncated_length, self._admin, segment.scope, segment.stream, segment.segment_id),
            history=self._history_of(segment),
        )
        await stream.run(lambda batch: self._put(Arrived(owned, batch, stream.stored_at_us)))

    async def _following(self, owned: OwnedSegment) -> Following:
        """Asks the controller here and not in `read_batch`, which would keep the other segments waiting."""
        if owned.end is not None:
            return Following()
        scope, stream, segment_id = owned.segment.scope, owned.segment.stream, owned.segment.segment_id
        backoff = Backoff(SUCCESSORS_TIMEOUT_S)
        find = partial(recorded_successors, self._admin, scope, stream, segment_id, backoff, repeats=False)
        successors = await after_freeze(find, backoff)
        named = {StreamSegmentName(scope, stream, segment.segment_id): segment for segment in successors.segments}
        return Following(
            {name: successor.predecessors for name, successor in named.items()},
            {name: successor.key_range for name, successor in named.items()},
        )

    async def _put(self, arrived: Arrived) -> None:
        await self._queue.put(arrived)
        self._on_arrival()

    def _connections_to(self, segment: StreamSegmentName) -> SegmentConnections:
        name = (segment.scope, segment.stream)
        if name not in self._connections:
            self._connections[name] = SegmentConnections(self._admin, *name)
        return self._connections[name]

    def _history_of(self, segment: StreamSegmentName) -> LinkedHistory:
        name = (segment.scope, segment.stream)
        if name not in self._histories:
            self._histories[name] = LinkedHistory(self._admin, *name)
        return self._histories[name]

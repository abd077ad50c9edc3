"""Accumulates events in blocks per segment, in the thread that writes them.

This is the hot path of a writer: one lock, one look-up of the routing key, three list appends. The event loop takes
blocks (`take`) and reports their outcome (`complete`, `fail`). When a segment is replaced, `reroute` moves its
unacknowledged events to the successors, before newer events of the same keys. Memory is bounded by `buffer_bytes` plus
one event.

A KeyboardInterrupt in a writing thread comes at the start or the end of a call. So the appender is woken before events
are added, and the statements that add and count them call nothing in between: an interrupt comes before all or after.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, SupportsIndex

from headrace.client.ownership import forked, not_picklable, other_loop
from headrace.client.writing.awaited_changes import Ack, AwaitedChanges
from headrace.client.writing.event_blocks import EVENT_HEADERS, Block, EventRun, ListedEvents, SegmentQueue, Wants
from headrace.client.writing.routing_table import Route, RoutingTable
from headrace.client.writing.unflushed import watch
from headrace.model.arguments import check_argument
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE, EVENT_HEADER_BYTES
from headrace.model.routing import routing_key_position
from headrace.model.segments import KeyRange

BLOCK_BYTES = 1024 * 1024
"""The size at which a block is full. Only a single event that is larger makes a larger block."""

BUFFER_BYTES = 64 * 1024 * 1024
"""The size of the unacknowledged events at which `write` starts to wait."""

KEYS_KEPT_MAX = 100_000
"""The number of routing keys whose segment is cached, so that most events need no hash."""

Change = Callable[[], object]

_ANY_EVENT: Final = Wants.ANY_EVENT
"""A look-up of an enumeration's member costs as much as the rest of `add`'s checks."""


@dataclass(frozen=True, slots=True)
class RoutesNow:
    """The segments of the stream, as a writer knows them at one moment: `queues[n]` takes positions up to `bounds[n]`.

    `version` changes when a segment is replaced.
    """

    version: int
    bounds: Sequence[float]
    queues: Sequence[SegmentQueue]


class BatchAccumulator:
    """The blocks of one writer. Thread-safe. Only the process that made it can use it.

    It may be compiled: so it has no weak references to it, no method `__del__`, and no base class.
    """

    def __init__(
        self,
        *,
        block_bytes: SupportsIndex = BLOCK_BYTES,
        buffer_bytes: SupportsIndex = BUFFER_BYTES,
        random_position: Callable[[], float] = random.random,
        stream_name: str = "",
    ) -> None:
        """The sizes are integers of any kind, for example of numpy: users give them."""
        self.stream_name = stream_name
        self.changed = AwaitedChanges()
        self._lock = self.changed.lock
        self.acknowledged_events = 0
        self.failed_events = 0
        self.is_closed = False
        self.is_reported = False
        self.filled_blocks = 0
        """The number of full blocks so far."""
        self._block_bytes = int(block_bytes)
        self._buffer_bytes = int(buffer_bytes)
        self._random_position = random_position
        self._buffered_bytes = 0
        self._failure: HeadraceError | None = None
        self._routes: RoutingTable[SegmentQueue] | None = None
        self._routes_version = 0
        self._by_key: dict[str | None, SegmentQueue] = {}
        self._listeners: list[Change] = []
        self._taken_events = 0
        """The number of events in blocks that appenders have taken, and that have no outcome yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched = watch(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise not_picklable(self)

    # Writers call these methods, in any thread.

    def add(self, event: bytes, routing_key: Any) -> Ack | None:
        """Adds an event to a block. Returns its acknowledgement, None if the buffer is full.

        The key is what the user gave: by another annotation compiled code would refuse it with a TypeError of its own.

        Raises:
            InvalidRequestError: code "event_too_large".
            HeadraceError: the writer has failed, or is closed.
        """
        size_bytes = len(event)
        if size_bytes > EVENT_BYTES_MAX_LARGE:
            raise too_large(size_bytes)
        with self._lock:
            if self._buffered_bytes >= self._buffer_bytes:
                self._check_open()
                return None
            try:
                queue = self._by_key.get(routing_key) or self._route(routing_key)
            except TypeError:
                check_routing_key(routing_key)
                raise
            block = queue.open
            if block.size_bytes + size_bytes >= self._block_bytes and block.keys:
                block = self._start_block(queue)
            if queue.wants is _ANY_EVENT:
                self._wake(queue)
            block.parts += (EVENT_HEADERS[size_bytes], event)
            size_bytes += EVENT_HEADER_BYTES
            block.size_bytes += size_bytes
            self._buffered_bytes += size_bytes
            block.keys.append(routing_key)  # a call, so it comes last
            return block.acks[0]

    def add_batch(self, events: Sequence[bytes], routing_keys: Sequence[str | None], ack: Ack) -> bool:
        """Adds events whose sizes were checked, with one `ack`. Adds none and returns False if the buffer is full."""
        with self._lock:
            if self._buffered_bytes >= self._buffer_bytes:
                self._check_open()
                return False
            for queue, its_events, its_keys in self._by_queue(events, routing_keys):
                self._extend(queue, ListedEvents(its_events, its_keys), ack)
            return True

    def routes_now(self) -> RoutesNow:
        """Returns what `add_runs` needs. Raises the error that ended the writer."""
        with self._lock:
            self._check_open()
            assert self._routes is not None, "a writer is opened before it is used"
            return RoutesNow(self._routes_version, self._routes.bounds(), self._routes.targets())

    def add_runs(self, routes: RoutesNow, runs: Iterable[tuple[SegmentQueue, EventRun]], ack: Ack) -> bool:
        """Adds runs of events whose sizes were checked, with one `ack`. The queues are those of `routes`.

        Adds none and returns False if the buffer is full or a segment was replaced: the runs are to be made again.
        """
        with self._lock:
            self._check_open()
            if self._buffered_bytes >= self._buffer_bytes or routes.version != self._routes_version:
                return False
            for queue, run in runs:
                self._extend(queue, run, ack)
            return True

    def add_bytes(self, data: memoryview) -> int:
        """Adds bytes that are not events to the blocks of the only segment, at most one block.

        Returns how many it took from the front of `data`: 0 if the buffer is full. Raises as `add`.
        """
        with self._lock:
            self._check_open()
            queue = self._route(None)
            block = queue.open
            if block.size_bytes >= self._block_bytes:  # after an interrupt
                block = self._start_block(queue)
            taken = min(len(data), self._block_bytes - block.size_bytes, self._buffer_bytes - self._buffered_bytes)
            if taken <= 0:
                return 0
            if queue.wants is _ANY_EVENT:
                self._wake(queue)
            block.extend_bytes(data[:taken])
            self._buffered_bytes += taken
            if block.size_bytes >= self._block_bytes:
                self._start_block(queue)
            return taken

    def new_ack(self) -> Ack:
        """Returns an acknowledgement with one part, so that it is not done before `settle` removes that part."""
        return Ack(self.changed)

    def settle(self, ack: Ack) -> None:
        """Removes the first part of `ack`, after all its events were added."""
        with self._lock:
            callbacks = ack.take_callbacks() if ack.part_done() else []
        for callback in callbacks:
            callback(ack)

    def wait_for_room(self, timeout_s: float | None = None) -> bool:
        """Blocks until the buffer has room or the writer has failed; False after `timeout_s`."""
        return self.changed.wait_for(self.has_room, timeout_s)

    def wait_until_empty(self, timeout_s: float | None = None) -> bool:
        """Blocks until every event is acknowledged or has failed; False after `timeout_s`."""
        return self.changed.wait_for(self.is_empty, timeout_s)

    def has_room(self) -> bool:
        return self._buffered_bytes < self._buffer_bytes or self._failure is not None

    def is_empty(self) -> bool:
        return self._buffered_bytes == 0

    @property
    def failure(self) -> HeadraceError | None:
        """The error that ended the writer, None while it is usable."""
        return self._failure

    # What happens to events of a writer that is not closed, see `unflushed`.

    @property
    def is_served(self) -> bool:
        """Whether the event loop that sends the events runs."""
        return self._loop is not None and self._loop.is_running()

    def unacknowledged_events(self) -> int:
        """The number of events that have no outcome yet."""
        with self._lock:
            queues = set() if self._routes is None else set(self._routes.targets())
            return self._taken_events + sum(queue.waiting_events() for queue in queues)

    def leave_to_parent(self) -> None:
        """Called in a child process after a fork: all calls raise IllegalStateError, and no call waits."""
        self.changed.leave_to_parent()
        self._lock = self.changed.lock
        self._failure = forked()
        self._by_key = {}
        self._buffered_bytes = 0
        self.is_closed = True

    # The event loop calls these methods.

    def listen(self, change: Change) -> None:
        """Calls `change` on the event loop each time blocks were acknowledged or have failed."""
        self._listeners.append(change)

    def route(self, routes: Iterable[Route[SegmentQueue]]) -> None:
        """Sets the segments of the stream."""
        self._loop = asyncio._get_running_loop()
        with self._lock:
            self._routes = RoutingTable(routes)

    def new_queue(self, segment_id: int, wake: Callable[[], object]) -> SegmentQueue:
        return SegmentQueue(segment_id, Block(self.new_ack()), wake)

    def take(self, queue: SegmentQueue, *, allow_partial: bool, wake_on: Wants) -> Block | None:
        """Returns the next block to send; with `allow_partial` also one that is not full.

        Without a block it returns None, and the appender is woken when there is what `wake_on` names.
        """
        with self._lock:
            if queue.ready:
                block = queue.ready.popleft()
            elif allow_partial and queue.open.keys:
                block, queue.open = queue.open, Block(self.new_ack())
            else:
                queue.wants = wake_on
                return None
            self._taken_events += block.count
        if not block.is_large:
            block.seal()
        return block

    def has_events(self, queue: SegmentQueue, *, wake_on: Wants) -> bool:
        """Whether the queue has events. If not, the appender is woken when there is what `wake_on` names."""
        with self._lock:
            if queue.ready or queue.open.keys:
                return True
            queue.wants = wake_on
            return False

    def with_events(self, queues: Iterable[SegmentQueue]) -> list[SegmentQueue]:
        """Returns those of the queues that have events to send. A batch is seen with all of its queues or with none."""
        with self._lock:
            return [queue for queue in queues if queue.ready or queue.open.keys]

    def complete(self, blocks: Sequence[Block]) -> None:
        """Acknowledges blocks that are durable."""
        self.acknowledged_events += sum(block.count for block in blocks)
        self._settle(blocks, None)

    def fail(self, queue: SegmentQueue, in_flight: Iterable[Block], error: HeadraceError) -> None:
        """Fails all unacknowledged events of a segment. The writer accepts no more events."""
        taken = list(in_flight)
        with self._lock:
            self._failure = self._failure or error
            self._by_key.clear()
            self._taken_events += queue.waiting_events()  # `_settle` removes them
            blocks = [*taken, *queue.ready, queue.open]
            queue.ready.clear()
            queue.open = Block(self.new_ack())
            queue.wants = Wants.NOTHING
        self._settle(blocks, error)

    def close(self, error: HeadraceError) -> None:
        """Makes the writer refuse more events, with `error`."""
        with self._lock:
            self.is_closed = True
            self._failure = self._failure or error
            self._by_key.clear()
            self.changed.wake_all()

    def reroute(
        self, queue: SegmentQueue, in_flight: Iterable[Block], successors: Iterable[tuple[KeyRange, SegmentQueue]]
    ) -> None:
        """Moves the events of `queue`, in order, to the successors of its segment, and routes newer events to them.

        Raises:
            CorruptError: the successors do not cover the keys of the segment; nothing changed.
        """
        with self._lock:
            routes = self._routes
            assert routes is not None, "a queue exists, so there were routes"
            following = [Route(key_range, target) for key_range, target in successors]
            routes.replace(queue, following)
            self._routes_version += 1
            self._by_key.clear()
            taken = list(in_flight)
            self._taken_events -= sum(block.count for block in taken)
            blocks = [*taken, *queue.ready, queue.open]
            queue.ready.clear()
            queue.open = Block(self.new_ack())
            queue.wants = Wants.NOTHING
            targets = [route.target for route in following]
            for block in blocks:
                self._redistribute(block, targets)
            if self._failure is not None:
                self._by_key.clear()  # a cached key would skip the check for the failure

    def _redistribute(self, block: Block, successors: Sequence[SegmentQueue]) -> None:
        """Copies a block's events into blocks of the successors. Its acknowledgements then wait for these blocks.

        Events without a key go to the successors, too: another segment may have failed, and would never send them.
        """
        touched: set[Block] = set()
        for event, key in zip(block.events(), block.event_keys(), strict=True):
            if key is None:
                queue = successors[int(self._random_position() * len(successors))]
            else:
                queue = self._by_key.get(key) or self._route(key, even_if_failed=True)
            target = queue.open
            if target.size_bytes + len(event) >= self._block_bytes and target.keys:
                target = self._start_block(queue)
            target.extend((event,), (key,), (len(event),))
            if target not in touched:
                touched.add(target)
                for ack in block.acks:
                    ack.add_part()
                target.acks += block.acks
            if queue.wants is Wants.ANY_EVENT:
                self._wake(queue)
        for ack in block.acks:
            ack.part_done()

    def _settle(self, blocks: Sequence[Block], error: HeadraceError | None) -> None:
        """Settles blocks, and schedules the callbacks on the event loop, which logs errors that they raise."""
        finished: list[Ack] = []
        with self._lock:
            for block in blocks:
                self._buffered_bytes -= block.size_bytes
                self._taken_events -= block.count
                self.failed_events += block.count if error is not None else 0
                finished += [ack for ack in block.acks if ack.part_done(error)]
            callbacks = [(ack, callback) for ack in finished for callback in ack.take_callbacks()]
            self.changed.wake_all()
        for ack, callback in callbacks:
            asyncio.get_running_loop().call_soon(callback, ack)
        for change in self._listeners:
            change()

    def _route(self, routing_key: str | None, *, even_if_failed: bool = False) -> SegmentQueue:
        """Returns the queue of a key that is not cached. An event without a key goes to a random segment."""
        if not even_if_failed:
            self._check_open()
        assert self._routes is not None, "a writer is opened before it is used"
        if routing_key is None:
            return self._routes.target_of(self._random_position())
        check_routing_key(routing_key)
        queue = self._routes.target_of(routing_key_position(routing_key))
        if len(self._by_key) >= KEYS_KEPT_MAX:
            self._by_key.clear()
        self._by_key[routing_key] = queue
        return queue

    def _by_queue(
        self, events: Sequence[bytes], routing_keys: Sequence[str | None]
    ) -> list[tuple[SegmentQueue, Sequence[bytes], Sequence[str | None]]]:
        """Groups events by queue, in order. Each distinct key is hashed once."""
        targets = self._by_key
        distinct = set(routing_keys)
        if not distinct <= targets.keys():
            targets = {key: targets.get(key) or self._route(key) for key in distinct if key is not None}
        queues: Iterable[SegmentQueue]
        if None in distinct:
            queues = [self._route(None) if key is None else targets[key] for key in routing_keys]
        elif len(set(map(targets.__getitem__, distinct))) == 1:
            return [(targets[routing_keys[0]], events, routing_keys)]
        else:
            queues = map(targets.__getitem__, routing_keys)
        parts: dict[SegmentQueue, tuple[list[bytes], list[str | None]]] = {}
        for event, key, queue in zip(events, routing_keys, queues, strict=True):
            part = parts.get(queue)
            if part is None:
                part = parts[queue] = ([], [])
            part[0].append(event)
            part[1].append(key)
        return [(queue, *part) for queue, part in parts.items()]

    def _extend(self, queue: SegmentQueue, run: EventRun, ack: Ack) -> None:
        """Fills blocks with slices of the run, which is faster than one event at a time."""
        if queue.wants is _ANY_EVENT:
            self._wake(queue)
        if queue.open.size_bytes + run.size_bytes <= self._block_bytes:
            self._fill(queue.open, run, 0, run.count, ack)
            return
        ends = run.ends
        first = taken_bytes = 0
        while first < run.count:
            block = queue.open
            last = bisect_right(ends, taken_bytes + self._block_bytes - block.size_bytes, first)
            if last == first:
                if block.keys:
                    self._start_block(queue)
                    continue
                last = first + 1  # an event larger than a block gets a block of its own
            self._fill(block, run, first, last, ack)
            first, taken_bytes = last, int(ends[last - 1])

    def _fill(self, block: Block, run: EventRun, first: int, last: int, ack: Ack) -> None:
        before_bytes = block.size_bytes
        run.fill(block, first, last)
        self._buffered_bytes += block.size_bytes - before_bytes
        ack.add_part()
        block.acks.append(ack)

    def _start_block(self, queue: SegmentQueue) -> Block:
        """Makes the full open block ready, and returns a new open one."""
        if queue.wants:
            self._wake(queue)
        full, following = queue.open, Block(self.new_ack())
        queue.open = following
        self.filled_blocks += 1
        queue.ready.append(full)
        return following

    def _wake(self, queue: SegmentQueue) -> None:
        """Wakes the appender of a queue that gets events. It waits for the lock, so the events may come later."""
        try:
            queue.wake()
        except RuntimeError as error:  # the loop was closed
            raise other_loop() from error
        queue.wants = Wants.NOTHING

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure


def check_routing_key(routing_key: object) -> None:
    """Raises InvalidRequestError if the key is neither text nor None."""
    check_argument("routing_key", routing_key, str | None)


def too_large(size_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"an event of {size_bytes} bytes is too large: at most {EVENT_BYTES_MAX_LARGE} bytes; split it, or store the "
        "data elsewhere and write a reference to it",
        details={"bytes": size_bytes, "bytes_max": EVENT_BYTES_MAX_LARGE},
        code="event_too_large",
    )

"""Packs events into blocks per segment, in the thread of whoever writes them.

The hot path of a writer: one lock, one look-up of the routing key, three list appends. The event loop takes blocks out
(`take`), reports what became of them (`complete`, `fail`) and, when a segment was replaced, has what was not yet
acknowledged dealt out anew, before anything newer of the same keys (`reroute`). Memory is bounded by `buffer_bytes`
and one event.
"""

from __future__ import annotations

import asyncio
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from headrace.client.event_blocks import EVENT_HEADERS, Ack, Block, SegmentQueue, Wants
from headrace.client.routing_table import Route, RoutingTable
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX_LARGE, EVENT_HEADER_BYTES
from headrace.model.routing import routing_key_position
from headrace.model.segments import KeyRange

BLOCK_BYTES = 1024 * 1024
"""A block this full is sent; only an event that is larger makes a larger block."""

BUFFER_BYTES = 64 * 1024 * 1024
"""Events not yet acknowledged that a writer holds before `write` waits."""

KEYS_KEPT_MAX = 100_000
"""Routing keys whose segment is remembered, so that most events need no hash."""

Change = Callable[[], object]


class EventPacker:
    """Blocks of one writer. Thread-safe."""

    def __init__(
        self,
        *,
        block_bytes: int = BLOCK_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        random_position: Callable[[], float] = random.random,
    ) -> None:
        self.changed = threading.Condition()
        self.acknowledged_events = 0
        self._block_bytes = block_bytes
        self._buffer_bytes = buffer_bytes
        self._random_position = random_position
        self._buffered_bytes = 0
        self._failure: HeadraceError | None = None
        self._routes: RoutingTable[SegmentQueue] | None = None
        self._by_key: dict[str | None, SegmentQueue] = {}
        self._listeners: list[Change] = []

    # For writers, in any thread.

    def add(self, event: bytes, routing_key: str | None) -> Ack | None:
        """Packs one event; None if the buffer is full.

        Raises:
            InvalidRequestError: code "event_too_large".
            HeadraceError: the writer has failed before, or is closed.
        """
        size_bytes = len(event)
        if size_bytes > EVENT_BYTES_MAX_LARGE:
            raise too_large(size_bytes)
        with self.changed:
            if self._buffered_bytes >= self._buffer_bytes:
                self._check_open()
                return None
            queue = self._by_key.get(routing_key) or self._route(routing_key)
            block = queue.open
            if block.size_bytes + size_bytes >= self._block_bytes and block.keys:
                block = self._turn(queue)
            block.parts += (EVENT_HEADERS[size_bytes], event)
            block.keys.append(routing_key)
            size_bytes += EVENT_HEADER_BYTES
            block.size_bytes += size_bytes
            self._buffered_bytes += size_bytes
            if queue.wants is Wants.ANY_EVENT:
                self._wake(queue)
            return block.acks[0]

    def add_batch(self, events: Sequence[bytes], routing_keys: Sequence[str | None], ack: Ack) -> bool:
        """Packs events whose sizes were checked, all for `ack`; False, and nothing done, if the buffer is full."""
        with self.changed:
            if self._buffered_bytes >= self._buffer_bytes:
                self._check_open()
                return False
            for queue, its_events, its_keys in self._by_queue(events, routing_keys):
                self._extend(queue, its_events, its_keys, ack)
                if queue.wants is Wants.ANY_EVENT:
                    self._wake(queue)
            return True

    def new_ack(self) -> Ack:
        """An acknowledgement with one part, which `settle` takes away."""
        return Ack(self.changed)

    def settle(self, ack: Ack) -> None:
        """All blocks of `ack` are known."""
        with self.changed:
            callbacks = ack.take_callbacks() if ack.part_done() else []
        for callback in callbacks:
            callback(ack)

    def wait_for_room(self, timeout_s: float | None = None) -> bool:
        """Blocks until the buffer has room or the writer has failed; False after `timeout_s`."""
        with self.changed:
            return self.changed.wait_for(self.has_room, timeout_s)

    def wait_until_empty(self, timeout_s: float | None = None) -> bool:
        """Blocks until every event is acknowledged or has failed; False after `timeout_s`."""
        with self.changed:
            return self.changed.wait_for(self.is_empty, timeout_s)

    def has_room(self) -> bool:
        return self._buffered_bytes < self._buffer_bytes or self._failure is not None

    def is_empty(self) -> bool:
        return self._buffered_bytes == 0

    @property
    def failure(self) -> HeadraceError | None:
        """What ended the writer."""
        return self._failure

    # For the event loop.

    def listen(self, change: Change) -> None:
        """Calls `change` on the event loop whenever blocks were settled."""
        self._listeners.append(change)

    def route(self, routes: Iterable[Route[SegmentQueue]]) -> None:
        """The first segments."""
        with self.changed:
            self._routes = RoutingTable(routes)

    def new_queue(self, segment_id: int, wake: Callable[[], object]) -> SegmentQueue:
        return SegmentQueue(segment_id, Block(self.new_ack()), wake)

    def take(self, queue: SegmentQueue, *, open_too: bool, otherwise: Wants) -> Block | None:
        """The next block to send; `open_too` if one that is not full will do. Without one, `otherwise` is wanted."""
        with self.changed:
            if queue.ready:
                block = queue.ready.popleft()
            elif open_too and queue.open.keys:
                block, queue.open = queue.open, Block(self.new_ack())
            else:
                queue.wants = otherwise
                return None
        if not block.is_large:
            block.seal()
        return block

    def has_events(self, queue: SegmentQueue, *, otherwise: Wants) -> bool:
        """Whether there is something to take; if not, `otherwise` is wanted."""
        with self.changed:
            if queue.ready or queue.open.keys:
                return True
            queue.wants = otherwise
            return False

    def complete(self, blocks: Sequence[Block]) -> None:
        """The blocks are durable."""
        self.acknowledged_events += sum(len(block.keys) for block in blocks)
        self._settle(blocks, None)

    def fail(self, queue: SegmentQueue, in_flight: Iterable[Block], error: HeadraceError) -> None:
        """Nothing of this segment will be acknowledged any more, and the writer takes no more events."""
        with self.changed:
            self._failure = self._failure or error
            self._by_key.clear()
            blocks = [*in_flight, *queue.ready, queue.open]
            queue.ready.clear()
            queue.open = Block(self.new_ack())
            queue.wants = Wants.NOTHING
        self._settle(blocks, error)

    def close(self, error: HeadraceError) -> None:
        """The writer takes no more events."""
        with self.changed:
            self._failure = self._failure or error
            self._by_key.clear()
            self.changed.notify_all()

    def reroute(
        self, queue: SegmentQueue, in_flight: Iterable[Block], successors: Iterable[tuple[KeyRange, SegmentQueue]]
    ) -> None:
        """Sends what was meant for `queue`, in order, to the segments that follow it, and from now on all newer events.

        Raises:
            CorruptError: the successors do not cover the keys of the segment; nothing changed.
        """
        with self.changed:
            routes = self._routes
            assert routes is not None, "a queue exists, so there were routes"
            routes.replace(queue, (Route(key_range, target) for key_range, target in successors))
            self._by_key.clear()
            blocks = [*in_flight, *queue.ready, queue.open]
            queue.ready.clear()
            queue.open = Block(self.new_ack())
            queue.wants = Wants.NOTHING
            for block in blocks:
                self._deal_out(block)
            if self._failure is not None:
                self._by_key.clear()  # so that the next event meets the failure

    def _deal_out(self, block: Block) -> None:
        """Copies a block's events into the open blocks of their new segments; its acknowledgements wait for those."""
        touched: set[Block] = set()
        for event, key in zip(block.events(), block.keys, strict=True):
            queue = self._by_key.get(key) or self._route(key, even_if_failed=True)
            target = queue.open
            if target.size_bytes + len(event) >= self._block_bytes and target.keys:
                target = self._turn(queue)
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
        """On the event loop, which also reports what goes wrong inside callers' callbacks."""
        finished: list[Ack] = []
        with self.changed:
            for block in blocks:
                self._buffered_bytes -= block.size_bytes
                finished += [ack for ack in block.acks if ack.part_done(error)]
            callbacks = [(ack, callback) for ack in finished for callback in ack.take_callbacks()]
            self.changed.notify_all()
        for ack, callback in callbacks:
            asyncio.get_running_loop().call_soon(callback, ack)
        for change in self._listeners:
            change()

    def _route(self, routing_key: str | None, *, even_if_failed: bool = False) -> SegmentQueue:
        """The queue of a key that is not remembered; events without a key go anywhere."""
        if not even_if_failed:
            self._check_open()
        assert self._routes is not None, "a writer is opened before it is used"
        if routing_key is None:
            return self._routes.target_of(self._random_position())
        queue = self._routes.target_of(routing_key_position(routing_key))
        if len(self._by_key) >= KEYS_KEPT_MAX:
            self._by_key.clear()
        self._by_key[routing_key] = queue
        return queue

    def _by_queue(
        self, events: Sequence[bytes], routing_keys: Sequence[str | None]
    ) -> list[tuple[SegmentQueue, Sequence[bytes], Sequence[str | None]]]:
        """The events of each queue, in order; each distinct key is hashed once."""
        known = self._by_key
        distinct = set(routing_keys)
        targets = {key: known.get(key) or self._route(key) for key in distinct if key is not None}
        if None not in distinct and len(set(targets.values())) == 1:
            return [(next(iter(targets.values())), events, routing_keys)]
        parts: dict[SegmentQueue, tuple[list[bytes], list[str | None]]] = {}
        for event, key in zip(events, routing_keys, strict=True):
            queue = self._route(None) if key is None else targets[key]
            part = parts.get(queue)
            if part is None:
                part = parts[queue] = ([], [])
            part[0].append(event)
            part[1].append(key)
        return [(queue, *part) for queue, part in parts.items()]

    def _extend(self, queue: SegmentQueue, events: Sequence[bytes], keys: Sequence[str | None], ack: Ack) -> None:
        """Fills blocks with slices of the events, never with one event at a time."""
        lengths = list(map(len, events))
        ends = list(accumulate(map(EVENT_HEADER_BYTES.__add__, lengths)))
        self._buffered_bytes += ends[-1]
        first = taken_bytes = 0
        while first < len(events):
            block = queue.open
            last = bisect_right(ends, taken_bytes + self._block_bytes - block.size_bytes, first)
            if last == first:
                if block.keys:
                    self._turn(queue)
                    continue
                last = first + 1  # an event larger than a block travels alone
            block.extend(events[first:last], keys[first:last], lengths[first:last])
            ack.add_part()
            block.acks.append(ack)
            first, taken_bytes = last, ends[last - 1]

    def _turn(self, queue: SegmentQueue) -> Block:
        """The open block is full: a new one."""
        queue.ready.append(queue.open)
        queue.open = Block(self.new_ack())
        if queue.wants:
            self._wake(queue)
        return queue.open

    def _wake(self, queue: SegmentQueue) -> None:
        queue.wants = Wants.NOTHING
        queue.wake()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure


def too_large(size_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"an event of {size_bytes} bytes is too large: at most {EVENT_BYTES_MAX_LARGE} bytes; split it, or store it "
        "elsewhere and write where it is",
        details={"bytes": size_bytes, "bytes_max": EVENT_BYTES_MAX_LARGE},
        code="event_too_large",
    )

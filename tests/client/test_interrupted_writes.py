"""A KeyboardInterrupt anywhere in a write: what was added is counted and sent, so that a later flush ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import count, product

import pytest
from keyboard_interrupts import interrupted_after, is_interrupted

from headrace.client.writing import batch_accumulator, event_blocks
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_blocks import EVENT_HEADERS, Block, ListedEvents, Wants
from headrace.client.writing.routing_table import Route
from headrace.model.segments import equal_ranges

EVENTS = [b"event %d" % number for number in range(10)]
BLOCK_BYTES = 40
"""Two events fit into a block, a third does not."""

BUFFER_BYTES = 1 << 30
"""Never full, even if a signal comes only at its second try."""

MODULES = (batch_accumulator, event_blocks, sys.modules[__name__])
"""This one has the wake-up."""

SIGNALS = 500
LARGE = b"an event that is larger than a block of these tests"


class Appender:
    """An accumulator, and an appender that looks for blocks only after it was woken."""

    def __init__(self, wants: Wants, *events: bytes) -> None:
        """The accumulator holds these events already."""
        EVENT_HEADERS.clear()  # whether the header of an event is cached must not matter
        self.accumulator = BatchAccumulator(block_bytes=BLOCK_BYTES, buffer_bytes=BUFFER_BYTES)
        self.wakes = 0
        self.queue = self.accumulator.new_queue(0, self._wake)
        self.accumulator.route([Route(equal_ranges(1)[0], self.queue)])
        for event in events:
            self.accumulator.add(event, "key")
        self.wakes = 0
        self.queue.wants = wants

    def _wake(self) -> None:
        self.wakes += 1

    def blocks(self) -> list[Block]:
        """Takes the blocks as one that is woken, or that was promised a block and gets an acknowledgement."""
        if not self.wakes and self.queue.wants is Wants.ANY_EVENT:
            return []
        found = []
        while (block := self.accumulator.take(self.queue, allow_partial=True, wake_on=Wants.ANY_EVENT)) is not None:
            found.append(block)
        self.wakes = 0
        return found

    def sent(self) -> list[bytes]:
        """Sends and acknowledges all that was added."""
        blocks = self.blocks()
        assert all(block.count == len(list(block.event_keys())) == len(block.events()) for block in blocks)
        self.accumulator.complete(blocks)
        assert self.accumulator.is_empty(), "a flush would wait for ever"
        return [event for block in blocks for event in block.events()]


def _add(accumulator: BatchAccumulator) -> None:
    for event in EVENTS:
        assert accumulator.add(event, "key")


def _add_large(accumulator: BatchAccumulator) -> None:
    assert accumulator.add(LARGE, "key")
    assert accumulator.add(EVENTS[0], "key")


def _add_batch(accumulator: BatchAccumulator) -> None:
    assert accumulator.add_batch(EVENTS, ["key"] * len(EVENTS), accumulator.new_ack())


def _add_runs(accumulator: BatchAccumulator) -> None:
    routes = accumulator.routes_now()
    runs = [(routes.queues[0], ListedEvents(EVENTS[at : at + 5], ["key"] * 5)) for at in (0, 5)]
    assert accumulator.add_runs(routes, runs, accumulator.new_ack())


def _add_bytes(accumulator: BatchAccumulator, data: bytes) -> None:
    left = memoryview(data)
    while left:
        taken = accumulator.add_bytes(left)
        assert taken
        left = left[taken:]


@pytest.mark.parametrize(
    ("wants", "before"),
    [
        (Wants.ANY_EVENT, []),
        *product((Wants.NOTHING, Wants.FULL_BLOCK), ([], [b"0"], [b"0", b"1", LARGE])),
    ],
    ids=str,
)
@pytest.mark.parametrize("write", [_add, _add_large, _add_batch, _add_runs])
def test_interrupted_write_is_counted_and_sent(
    write: Callable[[BatchAccumulator], None], wants: Wants, before: list[bytes]
) -> None:
    whole = [*before, LARGE, EVENTS[0]] if write is _add_large else [*before, *EVENTS]
    for at in count():
        appender = Appender(wants, *before)
        was_interrupted = is_interrupted(partial(write, appender.accumulator), at, *MODULES)
        found = appender.sent()
        assert found == whole[: len(found)], f"at place {at}"
        assert appender.accumulator.add(b"next", "key")
        assert appender.sent() == [b"next"]
        if not was_interrupted:
            assert found == whole
            break


@pytest.mark.parametrize("write", [_add, _add_large, _add_batch, _add_runs])
def test_signals_leave_events_whole(write: Callable[[BatchAccumulator], None]) -> None:
    """As above, with real signals, which also reach compiled code."""
    whole = [LARGE, EVENTS[0]] if write is _add_large else EVENTS
    interrupts = 0
    while interrupts < SIGNALS:
        appender = Appender(Wants.ANY_EVENT)
        calls = 0
        try:
            with interrupted_after((interrupts % 50 + 1) * 5e-6):
                while True:
                    write(appender.accumulator)
                    calls += 1
        except KeyboardInterrupt:
            interrupts += 1
        found = appender.sent()
        assert calls * len(whole) <= len(found) <= (calls + 1) * len(whole)
        assert found == (whole * (calls + 1))[: len(found)]
        assert appender.accumulator.add(b"next", "key")
        assert appender.sent() == [b"next"]


@pytest.mark.parametrize("wants", Wants)
@pytest.mark.parametrize("before", [b"", b"0123", b"0" * (BLOCK_BYTES - 1)], ids=len)
def test_interrupted_write_of_bytes_is_counted(before: bytes, wants: Wants) -> None:
    data = b"0123456789" * 10
    for at in count():
        appender = Appender(wants)
        _add_bytes(appender.accumulator, before)
        was_interrupted = is_interrupted(partial(_add_bytes, appender.accumulator, data), at, *MODULES)
        _add_bytes(appender.accumulator, b"next")
        blocks = appender.blocks()
        stored = b"".join(block.seal() for block in blocks)
        assert [block.count for block in blocks] == [1] * len(blocks)
        appender.accumulator.complete(blocks)
        assert appender.accumulator.is_empty(), f"at place {at}"
        assert stored.endswith(b"next")
        assert (before + data).startswith(stored[:-4])
        if not was_interrupted:
            assert stored == before + data + b"next"
            break

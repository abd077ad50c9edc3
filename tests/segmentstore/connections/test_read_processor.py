"""Reads at a tail: how many wait, which of them make room for others, and how one append wakes them all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from segment_writes import created_segment
from session_channels import FakeChannel, feed, open_session
from store_world import RunningStore, World

from headrace import wire
from headrace.adapters.system_clock import SystemClock
from headrace.segmentstore.connections import read_processor
from headrace.segmentstore.connections.connection_limits import HELD_READS_MAX
from headrace.segmentstore.connections.read_processor import WAKES_PER_TURN_MAX
from headrace.segmentstore.connections.session import Session

pytestmark = pytest.mark.anyio

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
WRITER = 5


async def reading(running: RunningStore, count: int, segment: str = SEGMENT) -> tuple[Session, FakeChannel]:
    """A connection with so many reads at the tail of a segment."""
    session, channel = open_session(running)
    for number in range(count):
        await feed(session, channel, wire.encode(wire.ReadSegment(segment, 3, 9, "", number)))
    return session, channel


def replies_to(channel: FakeChannel) -> list[Any]:
    return list(channel.replies())


def empty(number: int, replies: list[Any]) -> bool:
    """Whether a read was answered as one at the tail is when its time is over."""
    return any(
        isinstance(reply, wire.SegmentRead)
        and reply.request_id == number
        and (reply.offset, bytes(reply.data), reply.at_tail, reply.end_of_segment) == (3, b"", True, False)
        for reply in replies
    )


async def test_one_append_wakes_its_readers_in_portions(world: World, monkeypatch: pytest.MonkeyPatch):
    """60,000 reads at one tail kept all others from a store for 3.7 s."""
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one", writer=WRITER, first=1)
        readers = [await reading(running, 500) for _ in range(2)]
        assert running.listener.held_reads == 1_000
        woken, turn, most = 0, 0, 0
        read = read_processor.ReadProcessor.read

        def counted(self: read_processor.ReadProcessor, command: wire.ReadSegment) -> None:
            nonlocal woken
            woken += 1
            read(self, command)

        def next_turn() -> None:
            nonlocal woken, turn, most
            most, woken, turn = max(most, woken), 0, turn + 1
            if running.listener.held_reads:
                asyncio.get_running_loop().call_soon(next_turn)

        monkeypatch.setattr(read_processor.ReadProcessor, "read", counted)
        next_turn()
        await client.append(WRITER, 2, b"two")
        await running.until(lambda: not running.listener.held_reads)
        assert 0 < most <= WAKES_PER_TURN_MAX
        await running.until(lambda: all(len(replies_to(channel)) == 500 for _, channel in readers))
        assert all(bytes(reply.data) == b"two" for _, channel in readers for reply in replies_to(channel))


async def test_reads_that_wait_to_be_woken_may_end(world: World):
    """Their connection is closed, or their time is over, between the append and their turn."""
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one", writer=WRITER, first=1)
        (gone, _), (late, channel) = [await reading(running, 3 * WAKES_PER_TURN_MAX) for _ in range(2)]
        durable = running.store.owner_of(SEGMENT).container.metadata.segments[SEGMENT].durable
        durable.wake_waiters()
        gone.disconnected()
        last = list(late._reads._held)[-1]
        last.answer_empty()
        await client.append(WRITER, 2, b"two")
        await running.until(lambda: len(replies_to(channel)) == 3 * WAKES_PER_TURN_MAX)
        assert empty(3 * WAKES_PER_TURN_MAX - 1, replies_to(channel))
        assert running.listener.held_reads == 0
        assert not durable.waiters


@pytest.mark.parametrize("limit", ["segment", "process"])
async def test_a_full_tail_answers_the_oldest_read(world: World, monkeypatch: pytest.MonkeyPatch, limit: str):
    if limit == "segment":
        monkeypatch.setattr(read_processor, "HELD_READS_PER_SEGMENT_MAX", 10)
    else:
        monkeypatch.setattr(read_processor, "HELD_READS_PER_PROCESS_MAX", 10)
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one", writer=WRITER, first=1)
        _, crowd = await reading(running, 12)
        assert [reply.request_id for reply in replies_to(crowd)] == [0, 1]
        assert empty(0, replies_to(crowd))
        _, newcomer = await reading(running, 2)
        assert [reply.request_id for reply in replies_to(crowd)] == [0, 1, 2]
        assert empty(0, replies_to(newcomer))
        assert running.listener.held_reads == 10
        await client.append(WRITER, 2, b"two")
        await running.until(lambda: len(replies_to(newcomer)) == 2)
        assert bytes(replies_to(newcomer)[1].data) == b"two"


async def test_a_full_tail_leaves_other_segments_alone(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_processor, "HELD_READS_PER_SEGMENT_MAX", 10)
    async with world.running() as running:
        await created_segment(running, SEGMENT, b"one", writer=WRITER, first=1)
        await created_segment(running, OTHER, b"one", writer=WRITER, first=1)
        _, other = await reading(running, 10, OTHER)
        await reading(running, 100)
        assert replies_to(other) == []
        assert running.listener.held_reads == 20


async def test_the_end_of_many_reads_takes_one_step_each(world: World):
    async with world.running() as running:
        await created_segment(running, SEGMENT, b"one", writer=WRITER, first=1)
        session, _ = await reading(running, HELD_READS_MAX)
        durable = running.store.owner_of(SEGMENT).container.metadata.segments[SEGMENT].durable
        assert isinstance(durable.waiters, dict)  # not a list, in which each of them is looked for
        session.disconnected()
        assert not durable.waiters
        assert running.listener.held_reads == 0


async def test_a_read_that_fails_keeps_none_from_its_turn():
    class Read:
        def __init__(self, number: int) -> None:
            self.number = number

        def on_news(self) -> None:
            reads.remove(self)
            woken.append(self.number)
            if self.number == WAKES_PER_TURN_MAX:
                raise ArithmeticError

        def answer_empty(self) -> None:
            raise AssertionError

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    reads, woken = read_processor.HeldReads(SystemClock()), list[int]()
    for number in range(3 * WAKES_PER_TURN_MAX):
        read = Read(number)
        reads.add(read)
        reads.wake(read)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert woken == list(range(3 * WAKES_PER_TURN_MAX))
    assert [type(failure) for failure in failures] == [ArithmeticError]

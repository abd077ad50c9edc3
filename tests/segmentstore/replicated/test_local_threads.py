"""Logs depend on no thread that waits for AWS: owners append, members catch up, and copies are read meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from recorded_links import AnswersKept
from replicated_world import LOG, append, numbered, opened, replicated_world, until

from headrace.codec.replica_messages import Entries, Open, Opened, Read
from headrace.model.container_logs import LedgerStart
from headrace.replication.bounds import WriterBounds

pytestmark = pytest.mark.anyio


@contextmanager
def aws_does_not_answer() -> Iterator[None]:
    """All threads of `asyncio.to_thread` wait."""
    answers, threads = threading.Event(), ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.submit(answers.wait)
    try:
        yield
    finally:
        answers.set()


async def test_large_entries_are_encoded_while_aws_does_not_answer():
    async with replicated_world("ab") as world:
        world.compresses = True
        await world.start("c")
        ledger = await opened(world, "c")
        with aws_does_not_answer():
            await append(ledger, bytes(1 << 20), b"behind it")


async def test_members_catch_up_while_aws_does_not_answer():
    async with replicated_world("ab") as world:
        world.writer_bounds = WriterBounds(silence_ms=1 << 30, pulse_ms=50)
        owner, member = await world.start("c"), world.nodes["b"]
        ledger = await opened(world, "c")
        world.network.cut(owner.replica, member.replica)
        world.network.lose_link(owner.replica, member.replica)
        await append(ledger, *numbered(0, 50))
        with aws_does_not_answer():
            world.network.heal(owner.replica, member.replica)
            await until(lambda: member.sessions.log(LOG).durable_end == 50)


async def test_copies_are_read_while_aws_does_not_answer():
    async with replicated_world() as world:
        await append(await opened(world, "a"), *numbered(0, 50))
        node, link = world.nodes["b"], AnswersKept()
        await until(lambda: node.sessions.log(LOG).durable_end == 50)
        node.sessions.connected(link)
        node.sessions.received(link, Open(LOG, 1, 999, 0, (LedgerStart(0, 0),)))
        await until(lambda: any(isinstance(each, Opened) for each in link.answers))
        with aws_does_not_answer():
            node.sessions.received(link, Read(1, LOG, 0, 0, 49, 1 << 20))
            await until(lambda: isinstance(link.answers[-1], Entries))
        answer = link.answers[-1]
        assert isinstance(answer, Entries)
        assert [bytes(each.payload) for each in answer.entries] == numbered(0, 50)

"""Random programs of the client: writers, readers, transactions and byte streams, against stores that fail.

The client is the real one. Its connections, the stores and the controller are in the same event loop, in virtual time.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from unittest import mock

from fuzz.checker import WrongStateError
from fuzz.client_bytes import ByteUser
from fuzz.client_patches import patched_client
from fuzz.client_readers import ReaderUser
from fuzz.client_world import EVENTS, ClientWorld
from fuzz.client_writers import TransactionUser, WriterUser
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from headrace.client import AsyncHeadrace, HeadraceError, WriterOptions
from headrace.client.reading.event_reader import ReadOrder
from headrace.client.writing.event_writer import AsyncEventWriter

CALLS: Final = 40
FAULTS: Final = 60
_WRITERS_MAX: Final = 2
_PRODUCERS_MAX: Final = 4
_LIMIT_S: Final = 10_000.0
"""In virtual time. Whatever has not ended by then waits for something that does not happen."""

_FOREVER_S: Final = 1e9
_LEASE_MS: Final = 30_000
_BLOCKS_BYTES: Final = (1, 50, 200, 300)
_URL: Final = "http://controller.local"


async def run_client_program(seed: int, trace: Trace, *, calls: int = CALLS, faults: int = FAULTS) -> Counter[str]:
    """Run the program of a seed: about so many calls of each task, and so many faults. Counts what happened.

    Raises:
        WrongStateError: events are lost, repeated or in another order, a task does not end, or something is left.
    """
    random = Random(seed)
    loop = asyncio.get_running_loop()
    with patched_client(random):
        world = ClientWorld(random, trace)
        loop.set_exception_handler(lambda _, context: world.model.report(_shown(context)))
        with mock.patch.object(loop, "create_connection", world.network.connect):
            await _ClientProgram(random, world).run(calls, faults)
            await _check_nothing_left(world)
    return world.happened


class _ClientProgram:
    def __init__(self, random: Random, world: ClientWorld) -> None:
        self._random = random
        self._world = world
        self._model = world.model
        self._gives_up = random.random() < 0.1
        self._ending = random.choice(("close", "close", "leave", "seal"))
        self._writers: list[AsyncEventWriter] = []

    async def run(self, calls: int, faults: int) -> None:
        random, world = self._random, self._world
        transport = world.controller
        hasty_s = random.choice((0.05, 30.0, _FOREVER_S))
        async with AsyncExitStack() as stack:
            patient = await stack.enter_async_context(AsyncHeadrace(_URL, transport=transport, retry_s=_FOREVER_S))
            hasty = await stack.enter_async_context(AsyncHeadrace(_URL, transport=transport, retry_s=hasty_s))
            trouble = asyncio.ensure_future(world.trouble(random.choice((faults // 6, faults))))
            reader = self._reader(patient, "the first reader", ReadOrder.ARRIVAL)
            bytes_user = ByteUser(patient, world.bytes, self._model, self._random)
            reading: list[asyncio.Future[Any]] = [asyncio.ensure_future(bytes_user.consume())]
            if random.random() < 0.7:
                reading.append(asyncio.ensure_future(reader.read_all()))
            transactions = patient.transactional_writer("scope", EVENTS, self._options(_FOREVER_S), lease_ms=_LEASE_MS)
            transaction_user = TransactionUser(transactions, world.events, self._model, random, "t")
            working = [
                asyncio.ensure_future(bytes_user.produce(random.randrange(3))),
                asyncio.ensure_future(transaction_user.produce(random.randrange(5))),
            ]
            await self._write(hasty, calls)
            await self._finished(working, "transactions and byte writers")
            await self._finished([asyncio.ensure_future(transactions.close())], "the close of transactions")
            world.calm()
            await self._finished([trouble, *world.tasks], "the trouble")
            await world.events.seal(world.pause_s)
            await world.bytes.seal(world.pause_s)
            transaction_user.check()
            await self._finished(reading, "readers")
            bytes_user.check()
            if len(reading) > 1:
                self._model.check_read(reader.name, reader.read)
            await self._read_again(patient, reader)

    # Writers

    async def _write(self, client: AsyncHeadrace, calls: int) -> None:
        random = self._random
        users = []
        for number in range(random.randrange(1, _WRITERS_MAX + 1)):
            writer = await self._opened(client)
            self._writers.append(writer)
            users.append(WriterUser(writer, self._model, random, "ab"[number]))
        producing = [
            asyncio.ensure_future(user.produce(random.choice((calls // 8, calls))))
            for user in users
            for _ in range(random.randrange(1, _PRODUCERS_MAX + 1))
        ]
        if self._ending == "close":
            await self._finished(producing, "producers")
            await self._close(users)
        elif self._ending == "leave":
            await asyncio.sleep(random.random() * random.choice((0.01, 0.5, 20.0)))
            for writer in self._writers:
                await self._leave(writer)
            await self._finished(producing, "producers of a closed writer")
        else:
            await asyncio.sleep(random.random() * random.choice((0.01, 0.5, 20.0)))
            await self._finished(
                [asyncio.ensure_future(self._world.events.seal(self._world.pause_s))], "the seal of the stream"
            )
            await self._finished(producing, "producers of a sealed stream")
            await self._close(users)
        await asyncio.sleep(0.05)
        self._model.check_settled()
        for writer in self._writers:
            core = writer._core
            if core._connections._connections or core._appenders:
                self._model.report(f"a closed writer has {core._connections._connections} and {core._appenders}")

    async def _opened(self, client: AsyncHeadrace) -> AsyncEventWriter:
        block_bytes = self._random.choice(_BLOCKS_BYTES)
        while True:
            try:
                return await client.writer("scope", EVENTS, self._options(5.0 if self._gives_up else _FOREVER_S))
            except HeadraceError as error:  # a client that repeats its requests for a short time only
                self._model.happened[f"not opened: {type(error).__name__}"] += 1
                await asyncio.sleep(block_bytes / 100)

    def _options(self, give_up_after_s: float) -> WriterOptions:
        block_bytes = self._random.choice(_BLOCKS_BYTES)
        buffer_bytes = block_bytes * self._random.choice((1, 3, 100))
        return WriterOptions(block_bytes=block_bytes, buffer_bytes=buffer_bytes, give_up_after_s=give_up_after_s)

    async def _close(self, users: Sequence[WriterUser]) -> None:
        """Close the writers. They may only have failed if the stream was sealed, or if they give up."""
        for writer, user in zip(self._writers, users, strict=True):
            closing = asyncio.ensure_future(writer.close())
            error = user.error
            try:
                await self._finished([closing], "the close of a writer")
            except HeadraceError as problem:
                error = problem
            if error is None:
                self._model.happened["closed writers"] += 1
            elif self._ending == "close" and not self._gives_up:
                self._model.report(f"a writer failed with {error!r}")
            else:
                self._model.happened[f"failed writers: {type(error).__name__}"] += 1

    async def _leave(self, writer: AsyncEventWriter) -> None:
        """Leave the `async with` block of a writer with an error; the task that leaves may be cancelled."""
        leaving = asyncio.ensure_future(writer.__aexit__(ValueError, None, None))
        if self._random.random() < 0.4:
            for _ in range(self._random.randrange(1, 5)):
                await asyncio.sleep(0)
            leaving.cancel()
        await asyncio.wait({leaving})
        self._model.happened["left writers"] += 1

    # Readers

    def _reader(self, client: AsyncHeadrace, name: str, order: ReadOrder) -> ReaderUser:
        return ReaderUser(name, client, EVENTS, self._model, self._random, order)

    async def _read_again(self, client: AsyncHeadrace, first: ReaderUser) -> None:
        """Read the whole stream, and what is behind and before positions at which a reader was."""
        again = self._reader(client, "a later reader", self._random.choice(list(ReadOrder)))
        await self._finished([asyncio.ensure_future(again.read_all())], again.name)
        self._model.check_read(again.name, again.read)
        for of in (first, again):
            for cut, count in of.cuts[:2]:
                behind = self._reader(client, "a reader behind a position", self._random.choice(list(ReadOrder)))
                await self._finished([asyncio.ensure_future(behind.read_all(cut))], behind.name)
                self._model.check_read(behind.name, [*of.read[:count], *behind.read])
                before = self._reader(client, "a reader up to a position", ReadOrder.ARRIVAL)
                await self._finished([asyncio.ensure_future(before.read_all(end=cut))], before.name)
                self._model.check_read(before.name, [*before.read, *of.read[count:]])

    async def _finished(self, tasks: Sequence[asyncio.Future[Any]], what: str) -> None:
        """Wait for tasks. Raises the error of one of them, and what the model has found."""
        broken = self._model.broken
        together: asyncio.Future[Any] = asyncio.gather(*tasks)
        await asyncio.wait({together, broken}, timeout=_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            together.cancel()
            await asyncio.gather(together, return_exceptions=True)
            broken.result()
        if not together.done():
            together.cancel()
            raise WrongStateError(f"{what} do not end")
        together.result()


async def _check_nothing_left(world: ClientWorld) -> None:
    """No connection and no task is left, and no error that was not looked at."""
    await asyncio.sleep(1)
    if left := world.network.open:
        world.model.report(f"{len(left)} connections are left")
    own = {asyncio.current_task(), *world.tasks}
    if tasks := [repr(task.get_coro()) for task in asyncio.all_tasks() if task not in own]:
        world.model.report(f"tasks are left: {sorted(tasks)}")
    gc.collect()
    if world.model.broken.done():
        world.model.broken.result()
    world.model.broken.cancel()


def _shown(context: dict[str, Any]) -> str:
    return f"the event loop was told: {context.get('message')}: {context.get('exception')!r}"

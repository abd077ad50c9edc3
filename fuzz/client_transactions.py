"""A task that writes transactions one after the other: committed, aborted, left open, and those whose lease expires."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from fuzz.client_model import ClientModel, EventName, event_of
from fuzz.client_streams import StoredStream
from fuzz.randomness import Random
from headrace.client import HeadraceError
from headrace.client.writing.transactional_writer import AsyncTransaction, AsyncTransactionalWriter
from headrace.model.transactions import TransactionState

_SIZES_BYTES: Final = (0, 3, 40, 150, 250)
_PAUSES_S: Final = (0.0, 0.01, 1.0, 40.0)
_WAITS_S: Final = (0.001, 0.05, 3.0)


class TransactionUser:
    """Writes transactions with keys of its own, and checks what becomes of them."""

    def __init__(
        self, writer: AsyncTransactionalWriter, stream: StoredStream, model: ClientModel, random: Random, tag: str
    ) -> None:
        self._writer = writer
        self._stream = stream
        self._model = model
        self._random = random
        self._tag = tag
        self._ended: list[tuple[str, list[EventName], list[EventName]]] = []

    async def produce(self, transactions: int) -> None:
        for number in range(transactions):
            try:
                opened = await self._writer.begin()
            except HeadraceError:
                if self._writer.closed or not self._stream.begins_transactions:
                    return
                raise
            await self._use(opened, f"{self._tag}{number}.")
            await asyncio.sleep(self._random.random() * self._random.choice(_PAUSES_S))

    def check(self) -> None:
        """Each transaction that was committed is there as a whole, and nothing of another one."""
        for text, accepted, tried in self._ended:
            state = self._stream.transactions[text].state
            if state is TransactionState.COMMITTED:
                self._model.check_stored(accepted, "committed")
            else:
                self._model.check_absent(tried)

    async def _use(self, opened: AsyncTransaction, tag: str) -> None:
        random, model = self._random, self._model
        accepted: list[EventName] = []
        tried: list[EventName] = []
        self._ended.append((opened.id, accepted, tried))
        stored = self._stream.transactions[opened.id]
        try:
            for _ in range(random.choice((0, 1, 5, 20))):
                key = tag + random.choice("012")
                names = [model.new_name(key) for _ in range(random.choice((1, 1, 4)))]
                tried += names
                events = [event_of(name, random.choice(_SIZES_BYTES)) for name in names]
                ack = await opened.write_batch(events, key)
                accepted += names
                if random.random() < 0.2:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(random.choice(_WAITS_S)):
                            await ack
                if random.random() < 0.1:
                    await asyncio.sleep(random.random() * random.choice(_PAUSES_S))
            await self._end(opened, accepted)
        except HeadraceError as error:
            if stored.state is not TransactionState.ABORTED and not self._writer.closed:
                model.report(f"transaction {opened.id} is {stored.state.value}, and failed with {error!r}")

    async def _end(self, opened: AsyncTransaction, accepted: list[EventName]) -> None:
        random, model = self._random, self._model
        outcome = random.random()
        if outcome < 0.4:
            await opened.commit(wait=True)
            model.check_stored(accepted, "committed")
            model.happened["commits"] += 1
        elif outcome < 0.7:
            await opened.commit()
            model.happened["commits"] += 1
        elif outcome < 0.85:
            await opened.abort()
            model.happened["aborts"] += 1
        elif outcome < 0.95:
            await opened.detach()
            if random.random() < 0.7:
                again = await self._writer.transaction(opened.id)
                await again.commit(wait=True)
                model.check_stored(accepted, "committed by another one")
                model.happened["commits after a detachment"] += 1
        else:
            await opened.flush()  # its lease is renewed until the writer is closed

"""Tasks that write events: single ones, batches, columns and transactions, with cancelled calls, flushes and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from fuzz.cancelled_calls import CallCancelledError, sometimes_cancelled
from fuzz.client_model import WITHOUT_KEY, ClientModel, EventName, event_of
from fuzz.client_patches import now_s
from fuzz.client_streams import StoredStream
from fuzz.randomness import Random
from headrace.client import HeadraceError
from headrace.client.writing import ordered_calls
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.event_writer import AsyncEventWriter
from headrace.client.writing.transactional_writer import AsyncTransaction, AsyncTransactionalWriter
from headrace.model.transactions import TransactionState

pa.array([b""])  # imports numpy.random, which takes a number from `secrets`, before that comes from a seed

_KEYS: Final = 3
_BATCH_EVENTS_MAX: Final = 12
_SIZES_BYTES: Final = (0, 0, 5, 40, 150, 280, 400, 1_000)
_PAUSES_S: Final = (0.0, 0.001, 0.02, 0.3, 5.0)
_WAITS_S: Final = (0.001, 0.05, 3.0, 200.0)
_TRANSACTION_SIZES_BYTES: Final = (0, 3, 40, 150, 250)
_TRANSACTION_PAUSES_S: Final = (0.0, 0.01, 1.0, 40.0)
_TRANSACTION_WAITS_S: Final = (0.001, 0.05, 3.0)


class WriterUser:
    """Several tasks that share one writer. `tag` makes its keys unique."""

    def __init__(self, writer: AsyncEventWriter, model: ClientModel, random: Random, tag: str) -> None:
        self.error: HeadraceError | None = None
        """What the writer has raised. It accepts no more events."""
        self._writer = writer
        self._model = model
        self._random = random
        self._tag = tag
        self._accepted: list[EventName] = []

    async def produce(self, calls: int) -> None:
        """Write until so many calls are done, or until the writer fails."""
        for _ in range(calls):
            try:
                await self._write()
                await self._do_between()
            except HeadraceError as error:
                self.error = error
                return

    async def _write(self) -> None:
        random, model = self._random, self._model
        kind = random.random()
        keys = self._keys(1 if kind < 0.5 else random.randrange(1, _BATCH_EVENTS_MAX))
        names = [model.new_name(self._tag + key if key else WITHOUT_KEY + self._tag) for key in keys]
        call = self._call(kind, names, [self._tag + key if key else None for key in keys])
        try:
            ack = await sometimes_cancelled(call, random, 0.05, (0, 0, 0.001))
        except CallCancelledError:
            model.happened["cancelled calls"] += 1
            if len(names) <= ordered_calls.BATCH_SLICE_EVENTS:  # else a slice of the batch may be written
                model.not_written(names)
            return
        self._accepted += names
        model.written(names, ack)
        if random.random() < 0.3:
            with suppress(TimeoutError, HeadraceError):
                async with asyncio.timeout(random.choice(_WAITS_S)):
                    await ack

    def _keys(self, count: int) -> list[str | None]:
        """Routing keys without the tag. None stands for an event without a key."""
        random = self._random
        if random.random() < 0.4:
            return [str(random.randrange(_KEYS))] * count
        return [random.choice((None, "0", "1", "2")) for _ in range(count)]

    def _call(self, kind: float, names: Sequence[EventName], keys: list[str | None]) -> Coroutine[Any, Any, Ack]:
        random, writer = self._random, self._writer
        are_small = random.random() < 0.5
        events = [event_of(name, 3 if are_small else random.choice(_SIZES_BYTES)) for name in names]
        if kind < 0.5:
            return writer.write(events[0], keys[0])
        if kind < 0.8:
            return writer.write_batch(events, keys[0] if len(set(keys)) == 1 else keys)
        return writer.write_many(pa.array(events, pa.binary()), pa.array(keys, pa.string()))

    async def _do_between(self) -> None:
        random, writer = self._random, self._writer
        if random.random() < 0.2:
            await asyncio.sleep(random.random() * random.choice(_PAUSES_S))
        if random.random() < 0.02:
            before = list(self._accepted)
            with suppress(TimeoutError):
                async with asyncio.timeout(random.choice(_WAITS_S)):
                    await writer.flush()
                    self._model.check_stored(before, "flushed")
        if random.random() < 0.01:
            with suppress(TimeoutError, HeadraceError):
                async with asyncio.timeout(random.choice(_TRANSACTION_WAITS_S)):
                    await writer.note_time(int(now_s() * 1000))


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
            await asyncio.sleep(self._random.random() * self._random.choice(_TRANSACTION_PAUSES_S))

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
                events = [event_of(name, random.choice(_TRANSACTION_SIZES_BYTES)) for name in names]
                ack = await opened.write_batch(events, key)
                accepted += names
                if random.random() < 0.2:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(random.choice(_TRANSACTION_WAITS_S)):
                            await ack
                if random.random() < 0.1:
                    await asyncio.sleep(random.random() * random.choice(_TRANSACTION_PAUSES_S))
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

"""Readers of a whole stream: by batches, event by event or in columns, interrupted, and continued at their position."""

from __future__ import annotations

from typing import Final

from fuzz.cancelled_calls import CallCancelledError, sometimes_cancelled
from fuzz.client_model import ClientModel, EventName, EventOrder, name_of
from fuzz.client_streams import SCOPE
from fuzz.randomness import Random
from headrace.client import AsyncHeadrace, ReaderOptions
from headrace.client.reading.event_reader import AsyncEventReader, ReadOrder
from headrace.model.stream_cuts import StreamCut

_TIMEOUTS_S: Final = (0.0, 0.01, 0.5, 60.0)
_RESOLUTIONS_S: Final = (0.0, 0.1, 2.0)
_CUTS_MAX: Final = 6


class ReaderUser:
    """Reads a stream to its end, with one reader after the other."""

    def __init__(
        self, name: str, client: AsyncHeadrace, stream: str, model: ClientModel, random: Random, order: ReadOrder
    ) -> None:
        self.name = name
        self.read: list[EventName] = []
        self.cuts: list[tuple[StreamCut, int]] = []
        """Some positions, and how many events were read before."""
        self._client = client
        self._stream = stream
        self._model = model
        self._random = random
        self._options = ReaderOptions(order=order, give_up_after_s=1e9, time_resolution_s=random.choice(_RESOLUTIONS_S))
        self._order = EventOrder()
        self._newest_us = 0

    async def read_all(self, start: StreamCut | None = None, end: StreamCut | None = None) -> list[EventName]:
        """Read from a position to the end of the stream, or to a cut. Return the events."""
        position = start
        while True:
            opened = await self._client.reader(SCOPE, self._stream, position or "earliest", end, self._options)
            self._newest_us = 0
            async with opened:
                form = self._random.choice((self._batches, self._batches, self._events, self._columns))
                if await form(opened):
                    return self.read
                position = opened.position
                if len(self.cuts) < _CUTS_MAX:
                    self.cuts.append((position, len(self.read)))
                self._model.happened["reopened readers"] += 1

    async def _batches(self, reader: AsyncEventReader) -> bool:
        """Read in batches for a while. Return whether the reader has ended."""
        random = self._random
        while not reader.ended:
            call = reader.read_batch(random.choice(_TIMEOUTS_S))
            try:
                batch = await sometimes_cancelled(call, random, 0.05, (0, 0, 0.001))
            except CallCancelledError:
                continue
            for event in () if batch is None else batch.events:
                self._take(event)
            if random.random() < 0.02:
                return False
        return True

    async def _events(self, reader: AsyncEventReader) -> bool:
        async for each in reader:
            self._take(each.event)
            if self._random.random() < 0.02:
                return False
        return True

    async def _columns(self, reader: AsyncEventReader) -> bool:
        async for batch in reader.arrow_batches():
            for event in batch["event"].to_pylist():
                self._take(event)
            if self._random.random() < 0.02:
                return False
        return True

    def _take(self, event: bytes) -> None:
        name = name_of(event)
        self.read.append(name)
        self._model.happened["read events"] += 1
        if problem := self._order.problem(name):
            self._model.report(f"{self.name}: {problem}")
        if self._options.order is ReadOrder.TIME:
            self._check_time(name)

    def _check_time(self, name: EventName) -> None:
        """No event may come before one that was stored a resolution before it."""
        stored_us = self._model.stored.get(name, 0)
        resolution_us = self._options.time_resolution_s * 1e6
        if self._newest_us - stored_us > resolution_us:
            late_us = self._newest_us - stored_us
            self._model.report(f"{self.name}: {name} comes after an event that was stored {late_us} µs after it")
        self._newest_us = max(self._newest_us, stored_us)

"""A task that writes a byte stream, and one that reads it: each byte once, in order."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Final

from fuzz.cancelled_calls import CallCancelledError, sometimes_cancelled
from fuzz.client_model import ClientModel
from fuzz.client_streams import SCOPE, StoredSegment, StoredStream
from fuzz.randomness import Random
from headrace.client import AsyncHeadrace, HeadraceError
from headrace.client.single_segment.byte_stream import AsyncByteReader, AsyncByteWriter

_BUFFERS_BYTES: Final = (30, 300, 1 << 20)
_SIZES_BYTES: Final = (0, 1, 10, 100, 500)
_PAUSES_S: Final = (0.0, 0.001, 0.1, 5.0)
_WAITS_S: Final = (0.001, 0.05, 3.0)
_COUNTER_BYTES: Final = 4
_LATE_S: Final = 200.0
"""After it nothing is under way that a connection was given before."""


class ByteUser:
    """One writer at a time, so that the stream holds its bytes as they were written."""

    def __init__(self, client: AsyncHeadrace, stream: StoredStream, model: ClientModel, random: Random) -> None:
        self.written = bytearray()
        """What must be stored, and at its end perhaps what a call has written that did not return."""
        self.read = bytearray()
        self._certain_bytes = 0
        self._client = client
        self._stream = stream
        self._model = model
        self._random = random
        self._counter = 0

    @property
    def segment(self) -> StoredSegment:
        return self._stream.segments[self._stream.active[0]]

    async def produce(self, writers: int) -> None:
        random = self._random
        async with await self._client.byte_stream(SCOPE, self._stream.name) as stream:
            for _ in range(writers):
                expected = len(self.segment.data) if random.random() < 0.5 else None
                writer = await stream.writer(
                    expected_offset=expected, buffer_bytes=random.choice(_BUFFERS_BYTES), give_up_after_s=1e9
                )
                await self._use(writer)

    async def consume(self) -> None:
        """Read to the end of the stream, which must be sealed for that."""
        random = self._random
        while True:
            async with await self._client.byte_stream(SCOPE, self._stream.name) as stream:
                reader = await stream.reader(len(self.read), give_up_after_s=1e9)
                if await self._read(reader):
                    return
                await asyncio.sleep(random.random() * random.choice(_PAUSES_S))

    def check(self) -> None:
        stored = bytes(self.segment.data)
        if not self.written.startswith(stored) or len(stored) < self._certain_bytes:
            self._model.report(f"the byte stream has {len(stored)} bytes; at least {self._certain_bytes} were written")
        if self.read != stored:
            self._model.report(
                f"a reader of the byte stream got {len(self.read)} of {len(stored)} bytes, or other ones"
            )

    async def _use(self, writer: AsyncByteWriter) -> None:
        random = self._random
        for _ in range(random.choice((1, 10, 40))):
            await writer.write(self._new_bytes(random.choice(_SIZES_BYTES)))
            if random.random() < 0.2:
                await asyncio.sleep(random.random() * random.choice(_PAUSES_S))
            if random.random() < 0.1:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.choice(_WAITS_S)):
                        await writer.flush()
                        self._note_flushed()
        if random.random() < 0.7:
            await writer.close()
            self._note_flushed()
        else:
            await self._leave(writer)

    async def _leave(self, writer: AsyncByteWriter) -> None:
        """End a writer in the middle of its work: it may have stored a part of its bytes, and then stores no more."""
        call = asyncio.ensure_future(writer.write(self._new_bytes(1_000)))
        await asyncio.sleep(self._random.choice(_WAITS_S))
        call.cancel()
        await writer.discard()
        with suppress(asyncio.CancelledError, HeadraceError):
            await call
        self._model.happened["discarded byte writers"] += 1
        await asyncio.sleep(_LATE_S)
        stored = bytes(self.segment.data)
        if not self.written.startswith(stored) or len(stored) < self._certain_bytes:
            self._model.report(f"{len(stored)} bytes are stored; at least {self._certain_bytes} were flushed")
        self.written = bytearray(stored)
        self._note_flushed()

    def _note_flushed(self) -> None:
        if bytes(self.segment.data) != self.written:
            self._model.report(f"{len(self.written)} bytes are flushed, and {len(self.segment.data)} or others stored")
        self._certain_bytes = len(self.written)
        self._model.happened["flushed byte streams"] += 1

    def _new_bytes(self, size: int) -> bytes:
        """Bytes that show their place: numbers one after the other."""
        first = self._counter
        self._counter += size // _COUNTER_BYTES + 1
        numbers = range(first, self._counter)
        data = b"".join(number.to_bytes(_COUNTER_BYTES, "big") for number in numbers)[:size]
        self.written += data
        return data

    async def _read(self, reader: AsyncByteReader) -> bool:
        """Read for a while. Return whether the end of the stream was reached."""
        random = self._random
        while True:
            if random.random() < 0.05:
                await reader.seek(random.randrange(len(self.read) + 1))
                await reader.seek(len(self.read), os.SEEK_SET)
            call = reader.read(random.choice((1, 30, 5_000)))
            try:
                data = await sometimes_cancelled(call, random, 0.1, (0, 0.001, 0.1))
            except CallCancelledError:
                continue
            self.read += data
            if not data:
                return True
            if random.random() < 0.02:
                return False

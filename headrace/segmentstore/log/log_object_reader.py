"""Reads the entries of a log from its objects, in a thread, while the event loop fetches the next objects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from headrace.codec.log_objects import decode_log_object, log_object_name
from headrace.model.backoff import doubled_pause
from headrace.model.errors import CorruptError, NotFoundError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.ledger import LedgerEntry
from headrace.segmentstore.log.log_object_chain import LogObject

READ_AHEAD_BYTES: Final = 16 << 20
"""Fetched beyond the object whose entries are being read; at least one object."""

READ_AHEAD_OBJECTS: Final = 16

ATTEMPTS_MAX: Final = 8
"""Of one object. A failed recovery repeats everything, so that an object is worth some seconds."""

RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0


class LogObjectReader:
    """Reads the objects of one container's log; created on the event loop."""

    def __init__(self, storage: ChunkStorage, container: int) -> None:
        self._storage = storage
        self._container = container
        self._loop = asyncio.get_running_loop()

    def entries(self, objects: Sequence[LogObject], first_entry: int) -> Iterator[LedgerEntry]:
        """The entries from `first_entry` on, in order. Blocks, so it must not run on the event loop.

        Raises:
            CorruptError: an object is missing or damaged.
            ThrottledError, UnavailableError: chunk storage did not answer for a while.
        """
        wanted = deque(each for each in objects if each.end > first_entry)
        fetched: deque[tuple[LogObject, Future[bytes]]] = deque()
        fetched_bytes = 0
        try:
            while wanted or fetched:
                while wanted and self._may_fetch(len(fetched), fetched_bytes):
                    each = wanted.popleft()
                    fetched.append((each, self.begin_fetch(each)))
                    fetched_bytes += each.stored_bytes
                each, coming = fetched.popleft()
                raw = coming.result()
                fetched_bytes -= each.stored_bytes
                yield from self.decode(each, raw, first_entry)
        finally:
            for _, coming in fetched:
                coming.cancel()

    def begin_fetch(self, each: LogObject) -> Future[bytes]:
        """Begin to fetch an object, for a thread that waits for it."""
        return asyncio.run_coroutine_threadsafe(self.fetch(each), self._loop)

    def decode(self, each: LogObject, raw: bytes, first_entry: int) -> Iterator[LedgerEntry]:
        """The entries of one object from `first_entry` on."""
        name = log_object_name(self._container, each.epoch, each.sequence)
        for entry, payload in decode_log_object(name, raw):
            if entry >= first_entry:
                yield LedgerEntry(entry, payload)

    async def fetch(self, each: LogObject) -> bytes:
        """The bytes of an object; raises as `entries` does."""
        name = log_object_name(self._container, each.epoch, each.sequence)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self._storage.read(name, 0, each.stored_bytes)
            except NotFoundError as error:
                raise CorruptError(f"object {name}, which the log needs, does not exist any more") from error
            except (ThrottledError, UnavailableError):
                if attempt == ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(doubled_pause(attempt, RETRY_FIRST_S, RETRY_MOST_S))
        raise AssertionError("the last attempt neither returned nor raised")

    @staticmethod
    def _may_fetch(objects: int, object_bytes: int) -> bool:
        return not objects or (object_bytes < READ_AHEAD_BYTES and objects < READ_AHEAD_OBJECTS)

"""Loads the bytes that tier 2 lacks of a recovered container into memory, while the container accepts appends.

After the replay of the log the metadata is complete, but the bytes are missing. Another thread reads them from the log;
the event loop copies one slice at a time. Readers, tables and the storage writer wait for the whole load. Since the
storage writer waits, the log is not truncated before. Bytes that are truncated or deleted meanwhile are skipped; those
of merged segments are loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from headrace.codec.data_frames import APPEND_FIELDS_BYTES
from headrace.model.errors import CorruptError, HeadraceError, UnavailableError
from headrace.ports.ledger import Ledger, LedgerEntry
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.operation_log import FrameReader, OperationLog, resolve
from headrace.segmentstore.containers.wait_queue import WaitQueue

_log = logging.getLogger(__name__)

SLICE_BYTES: Final = 1 << 20
"""Copied in one turn of the loop, for which appends wait."""

PLACES_AT_ONCE_MAX: Final = 2_000
"""So many appends are noted on the event loop, in about 1 ms."""

_Place = tuple[int, int]
"""Log entry, and position in it."""

_Promised = dict[int, dict[int, Reservation]]
"""Reservations without bytes, by log entry and by position in it. One dictionary of a million keys would stop all
threads for 30 ms each time that it grows."""


class Backfill:
    """The backfill of one container: of the reservations that were `promised`.

    It must be created before the container logs anything, to read the old log.
    """

    def __init__(self, container: int, pool: BlockPool, entries: Iterator[LedgerEntry], promised: _Promised) -> None:
        self._container = container
        self._pool = pool
        self._promised = promised
        self._entries = entries
        self._reader = FrameReader(container, resumes=True)
        self._log: OperationLog | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue: WaitQueue[None] = WaitQueue()
        self.loaded_bytes = 0

    @classmethod
    async def of_replayed(cls, metadata: ContainerMetadata, pool: BlockPool, ledger: Ledger) -> Backfill:
        """Drop what tier 2 has of a container that was replayed, and promise the rest.

        There may be a million appends. Others on the event loop go on in between.
        """
        kept: list[list[Reservation]] = []
        for segment in metadata.segments.values():
            for entries_left in segment.index.drop_tiered():
                kept.append(entries_left)
                await asyncio.sleep(0)
        # Many in a thread: the loop releases the interpreter after each short turn, and takes it again before the
        # journal's thread is awake. Only a thread that computes for longer is made to give it up.
        is_long = sum(map(len, kept)) > PLACES_AT_ONCE_MAX
        promised = await asyncio.to_thread(_by_place, kept) if is_long else _by_place(kept)
        entries = ledger.recover(min(promised)) if promised else iter(())
        return cls(metadata.container, pool, entries, promised)

    @property
    def is_done(self) -> bool:
        return not self._promised

    def start(self, log: OperationLog) -> None:
        """Load in the background. A failure fails the container's `log`, since acknowledged bytes cannot be read."""
        if not self.is_done:
            self._log = log
            self._task = asyncio.ensure_future(self._run(log))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait(self) -> None:
        """Return when all bytes are loaded. Callers go on in the order of their calls.

        Raises:
            UnavailableError, FencedError, CorruptError: the container has stopped.
        """
        if self.is_done and self._queue.is_empty:
            return
        if self._log is None:
            raise AssertionError("the backfill is waited for before it was started")
        await self._queue.join(self._log.expect())

    async def load(self) -> None:
        """Load all bytes.

        Raises:
            CorruptError: the log lacks appends that it had when it was replayed.
            OSError: the log cannot be read.
        """
        while self._promised:
            appends = await asyncio.to_thread(self._read_slice)
            if not appends:
                missing = sum(map(len, self._promised.values()))
                raise CorruptError(f"the log of container {self._container} lacks {missing} appends")
            for place, content in appends:
                self._place(place, content)
        self._entries = iter(())  # release the mapped part of the log and the positions of its entries
        self._queue.settle(resolve)

    def _read_slice(self) -> list[tuple[_Place, memoryview]]:
        """Read the next operations of the log; none at its end."""
        appends: list[tuple[_Place, memoryview]] = []
        read_bytes = 0
        for stored in self._entries:
            for logged in self._reader.read(stored.entry, stored.payload):
                appends.append(((logged.entry, logged.position), memoryview(logged.content)))
            read_bytes += len(stored.payload)
            if appends and read_bytes >= SLICE_BYTES:
                break
        return appends

    def _place(self, place: _Place, content: memoryview) -> None:
        entry, position = place
        promised = self._promised.get(entry, {})
        reservation = promised.pop(position, None)
        if not promised:
            self._promised.pop(entry, None)
        if reservation is not None and reservation.live:
            self._pool.load(reservation, content[APPEND_FIELDS_BYTES:])
            self.loaded_bytes += reservation.length

    async def _run(self, log: OperationLog) -> None:
        try:
            await self.load()
        except HeadraceError as error:
            log.fail(error)
        except Exception as error:  # noqa: BLE001 - after any error acknowledged bytes cannot be served
            _log.exception("event=load_failed container=%d", self._container)
            log.fail(UnavailableError(f"the log of container {self._container} cannot be read: {error}"))
        else:
            _log.info("event=loaded container=%d loaded_bytes=%d", self._container, self.loaded_bytes)


def _by_place(kept: list[list[Reservation]]) -> _Promised:
    promised: _Promised = {}
    for reservations in kept:
        for each in reservations:
            promised.setdefault(each.ledger_entry, {})[each.start] = each
    return promised

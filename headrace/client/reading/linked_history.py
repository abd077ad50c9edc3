"""What S3 has of segments, for a reader in another zone than the segment's store.

Bytes from a store in another zone cost about 2 cents a GB, bytes from S3 nothing; a link and a listing of links have
prices of their own. So links are used where much is to be read, in pieces that are not small. All else comes from the
store: the tail, and all that S3 or the controller does not give at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from headrace.api.plans import Chunk, Chunks
from headrace.client.client_zone import ClientZone
from headrace.client.ownership import Unpicklable
from headrace.client.reading.chunk_reads import ChunkReads, check_contiguous
from headrace.client.reading.object_reads import ObjectReadError, ObjectReads
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError

LINKED_BYTES_MIN: Final = 4 << 20
"""Fewer bytes come from the store. They are worth 0.008 cents, and a request for links costs about 0.0002."""

CHUNK_BYTES_MIN: Final = 64 << 10
"""Of chunks on average. A GET costs as much as 20 kB from another zone."""

LISTED_BYTES_MAX: Final = 64 << 20
"""Of one listing. The store is asked between two listings, and tells of truncations."""

CHUNKS_PER_LISTING: Final = 64

SEGMENTS_AT_ONCE: Final = 8
"""That are read from S3, each by a thread with up to two windows of 1 MiB."""

LISTING_S_MAX: Final = 5.0
"""For the answer of the controller. The store can be read without it."""

OBJECT_S_MAX: Final = 5.0
"""Of silence of S3."""

WINDOW_S_MAX: Final = 30.0
"""For the next window. A read of which a byte comes now and then is never silent."""

PAUSE_S: Final = 300.0
"""After a failure, in which everything is read from the stores."""


_Windows = Generator[bytes | bytearray, None, None]


class LinkSource(Protocol):
    """Lists links; the admin implements it."""

    @property
    def zone(self) -> ClientZone: ...

    async def chunks(
        self, scope: str, stream: str, segment_id: int, *, from_offset: int, to_offset: int, limit: int
    ) -> Chunks: ...


class LinkedHistory(Unpicklable):
    """Reads segments of one stream through links; for one event loop. Has no thread before it is needed."""

    def __init__(
        self,
        source: LinkSource,
        scope: str,
        stream: str,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._source = source
        self._scope, self._stream = scope, stream
        self._monotonic_s = monotonic_s
        self._now_ms = now_ms
        self._paused_until_s: float | None = None
        self._turns = asyncio.Semaphore(SEGMENTS_AT_ONCE)
        self._threads: ThreadPoolExecutor | None = None
        self._objects = ObjectReads(OBJECT_S_MAX)
        self._reads: ChunkReads | None = None

    async def saves(self, store_zone: str) -> bool:
        """Whether bytes from S3 cost less than those from a store in this zone, now or after a pause."""
        return await self._source.zone.differs_from(store_zone)

    async def windows(self, segment_id: int, start: int, stop: int | None) -> AsyncGenerator[bytes | bytearray, None]:
        """Yields bytes of a segment from `start` on, in order and without a gap; none if they must come from its store.

        It ends at `stop`, after a listing, where S3 has no more, and at a failure. It raises no failure: the store has
        these bytes, too, and tells what is wrong with them. Use it with `contextlib.aclosing`.
        """
        if self._is_paused:
            return
        async with self._turns:
            chunks = await self._listed(segment_id, start, stop)
            if not chunks:
                return
            threads, items = self._resources(chunks)
            coming = threads.submit(next, items, None)
            try:
                while (window := await _in_time(coming)) is not None:
                    coming = threads.submit(next, items, None)
                    yield window
            except TimeoutError:
                self._pause()
                self._objects.abort()
            except ObjectReadError:
                # A slow caller finds that links have expired. The next listing has others.
                if self._now_ms() < min(chunk.expires_at_ms for chunk in chunks):
                    self._pause()
            finally:
                _close_after(coming, items)

    async def close(self) -> None:
        """Ends the reads that run, and the threads, without waiting for them."""
        if self._reads is not None:
            self._reads.close(wait=False)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._objects.close()

    async def _listed(self, segment_id: int, start: int, stop: int | None) -> Sequence[Chunk]:
        """Links from `start` on; none if they do not pay."""
        end = start + LISTED_BYTES_MAX if stop is None else min(stop, start + LISTED_BYTES_MAX)
        if self._is_paused or end - start < LINKED_BYTES_MIN:
            return ()
        try:
            async with asyncio.timeout(LISTING_S_MAX):
                found = await self._source.chunks(
                    self._scope, self._stream, segment_id, from_offset=start, to_offset=end, limit=CHUNKS_PER_LISTING
                )
            check_contiguous(segment_id, found.chunks, start, end)
        except (NotFoundError, TruncatedError):
            return ()
        except (HeadraceError, TimeoutError):
            self._pause()
            return ()
        length = sum(chunk.length for chunk in found.chunks)
        return found.chunks if length >= max(LINKED_BYTES_MIN, CHUNK_BYTES_MIN * len(found.chunks)) else ()

    def _resources(self, chunks: Sequence[Chunk]) -> tuple[ThreadPoolExecutor, _Windows]:
        if self._threads is None or self._reads is None:
            self._threads = ThreadPoolExecutor(SEGMENTS_AT_ONCE, thread_name_prefix="headrace-history")
            self._reads = ChunkReads(self._objects)
        return self._threads, self._reads.windows(chunks)

    @property
    def _is_paused(self) -> bool:
        return self._paused_until_s is not None and self._monotonic_s() < self._paused_until_s

    def _pause(self) -> None:
        self._paused_until_s = self._monotonic_s() + PAUSE_S


async def _in_time(coming: Future[bytes | bytearray | None]) -> bytes | bytearray | None:
    """The window, or None at the end. Raises TimeoutError, or ObjectReadError."""
    async with asyncio.timeout(WINDOW_S_MAX):
        return await asyncio.wrap_future(coming)


def _close_after(coming: Future[bytes | bytearray | None], items: _Windows) -> None:
    """Closes the generator when its last call has ended, which may run in a thread."""
    if coming.cancel():
        items.close()
    else:
        coming.add_done_callback(lambda _: items.close())

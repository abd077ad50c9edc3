"""What S3 has of segments, for a reader in another zone than the segment's store, and for one that uses no store.

Bytes from a store in another zone cost about 2 cents a GB, bytes from S3 nothing; a link and a listing of links have
prices of their own. So links are used where much is to be read, in pieces that are not small. All else comes from the
store: the tail, and all that S3 or the controller does not give at once.

A reader that uses no store (`ReaderOptions.from_s3`) takes all that S3 has, and asks again at the end of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from typing import Final, Protocol

from headrace.api.plans import Chunk, Chunks
from headrace.client.client_zone import ClientZone
from headrace.client.ownership import Unpicklable
from headrace.client.reading.chunk_reads import ChunkReads, check_contiguous
from headrace.client.reading.object_reads import ObjectReadError, ObjectReads
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError, UnavailableError

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

LISTINGS_AGAIN_S: Final = 2.0
"""After which S3 is looked at again where it had no more. A store moves bytes to S3 after 5 s."""

LISTINGS_PER_S: Final = 0.75
"""Of all segments together at the ends of what S3 has, each with a question for successors: many wait longer."""


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
        self._waiting = 0

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
            try:
                async with aclosing(self._fetched(chunks)) as windows:
                    async for window in windows:
                        yield window
            except TimeoutError:
                self._pause()
            except ObjectReadError:
                # A slow caller finds that links have expired. The next listing has others.
                if self._now_ms() < min(chunk.expires_at_ms for chunk in chunks):
                    self._pause()

    async def stored(self, segment_id: int, start: int, stop: int | None) -> AsyncGenerator[bytes | bytearray, None]:
        """Yields what S3 has of a segment from `start` on, in order and without a gap; none if it has no more there.

        It ends at `stop`, after a listing, and where S3 has no more. Use it with `contextlib.aclosing`.

        Raises:
            TruncatedError: the bytes at `start` were truncated.
            NotFoundError: the segment was deleted.
            UnavailableError: S3 or the controller did not answer.
        """
        async with self._turns:
            try:
                chunks = await self._list(segment_id, start, _end_of_listing(start, stop))
                async with aclosing(self._fetched(chunks)) as windows:
                    async for window in windows:
                        yield window
            except TimeoutError as error:
                raise UnavailableError(f"no bytes of segment {segment_id} came from S3 in time: repeat") from error

    async def until_next_listing(self) -> None:
        """Waits at the end of what S3 has of a segment. Segments that wait share a rate of listings."""
        self._waiting += 1
        try:
            await asyncio.sleep(max(LISTINGS_AGAIN_S, self._waiting / LISTINGS_PER_S))
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Ends the reads that run, and the threads, without waiting for them."""
        if self._reads is not None:
            self._reads.close(wait=False)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._objects.close()

    async def _listed(self, segment_id: int, start: int, stop: int | None) -> Sequence[Chunk]:
        """Links from `start` on; none if they do not pay."""
        end = _end_of_listing(start, stop)
        if self._is_paused or end - start < LINKED_BYTES_MIN:
            return ()
        try:
            chunks = await self._list(segment_id, start, end)
        except (NotFoundError, TruncatedError):
            return ()
        except (HeadraceError, TimeoutError):
            self._pause()
            return ()
        length = sum(chunk.length for chunk in chunks)
        return chunks if length >= max(LINKED_BYTES_MIN, CHUNK_BYTES_MIN * len(chunks)) else ()

    async def _list(self, segment_id: int, start: int, end: int) -> Sequence[Chunk]:
        async with asyncio.timeout(LISTING_S_MAX):
            found = await self._source.chunks(
                self._scope, self._stream, segment_id, from_offset=start, to_offset=end, limit=CHUNKS_PER_LISTING
            )
        check_contiguous(segment_id, found.chunks, start, end)
        return found.chunks

    async def _fetched(self, chunks: Sequence[Chunk]) -> AsyncGenerator[bytes | bytearray, None]:
        """Yields the bytes of the chunks. Raises TimeoutError, or ObjectReadError."""
        if not chunks:
            return
        threads, items = self._resources(chunks)
        coming = threads.submit(next, items, None)
        try:
            while (window := await _in_time(coming)) is not None:
                coming = threads.submit(next, items, None)
                yield window
        except TimeoutError:
            self._objects.abort()
            raise
        finally:
            _close_after(coming, items)

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


def _end_of_listing(start: int, stop: int | None) -> int:
    return start + LISTED_BYTES_MAX if stop is None else min(stop, start + LISTED_BYTES_MAX)


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

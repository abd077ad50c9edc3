"""The bytes of chunks in tier 2, through their links: small chunks several at a time, large ones window by window."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.api.plans import Chunk
from headrace.client.reading.object_reads import ObjectReads
from headrace.model.errors import CorruptError

SMALL_CHUNK_BYTES = 1024 * 1024
SMALL_CHUNKS_AT_ONCE = 4
"""A container packs many segments into one object, so runs can be small: S3's latency is paid several at a time."""


class ChunkReads:
    """Reads chunks in blocking calls. Several threads may use it at once. Close it at the end."""

    def __init__(self, objects: ObjectReads) -> None:
        self._objects = objects
        self._pool = ThreadPoolExecutor(SMALL_CHUNKS_AT_ONCE, thread_name_prefix="headrace-chunks")

    def windows(self, chunks: Sequence[Chunk]) -> Generator[bytes | bytearray, None, None]:
        """Yields the bytes of the chunks in their order, in windows of about WINDOW_BYTES at most.

        Raises:
            ObjectReadError: the bytes of a chunk could not be read this time.
        """
        waiting, coming = deque(chunks), deque[Future[bytes]]()
        while waiting or coming:
            while waiting and waiting[0].length <= SMALL_CHUNK_BYTES and len(coming) < SMALL_CHUNKS_AT_ONCE:
                coming.append(self._pool.submit(self._fetch_whole, waiting.popleft()))
            if coming:
                yield coming.popleft().result()
            else:
                yield from self._fetch(waiting.popleft())

    def close(self, *, wait: bool = True) -> None:
        """Ends the threads when the reads that run are done. An event loop must not `wait` for it."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _fetch_whole(self, chunk: Chunk) -> bytes:
        return b"".join(self._fetch(chunk))

    def _fetch(self, chunk: Chunk) -> Generator[bytearray, None, None]:
        return self._objects.read(chunk.url, chunk.headers, chunk.length)


def check_contiguous(segment_id: int, chunks: Sequence[Chunk], start: int, stop: int) -> None:
    """Raises CorruptError if the chunks have a gap, do not begin at `start`, or go beyond `stop`."""
    position = start
    for chunk in chunks:
        if chunk.offset != position or chunk.length < 1 or chunk.offset + chunk.length > stop:
            raise CorruptError(
                f"segment {segment_id}: asked for chunks from {start} to {stop}, was given one at {chunk.offset} with"
                f" {chunk.length} bytes where {position} is next",
                details={"segment": segment_id, "offset": chunk.offset, "length_bytes": chunk.length},
            )
        position += chunk.length

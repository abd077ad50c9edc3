"""The bytes of a segment range, wherever they are: history from S3 through signed links, the tail from its store.

Restartable at any byte: a link that expired, an object that the compactor replaced, a connection that broke all end in
a new listing from where the reading stopped. Raises an error after several failures in a row without progress.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from typing import Literal, Protocol, TypeVar

import httpx

from headrace.api.chunks import Chunk
from headrace.model.errors import CorruptError, UnavailableError

WINDOW_BYTES = 1024 * 1024
"""What is handed on at a time: some 10,000 small events, one Arrow batch."""

SMALL_CHUNK_BYTES = 1024 * 1024
SMALL_CHUNKS_AT_ONCE = 4
"""A container packs many segments into one object, so runs can be small: S3's latency is paid several at a time."""

GATHERED_BYTES_MIN = 256 * 1024
"""Below this a window is joined with the next: a batch has a price of its own."""

CHUNKS_PER_LISTING = 64
"""Links are signed in advance and expire; few enough that a slow consumer seldom sees that."""

FAILURES_IN_A_ROW_MAX = 6
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0
HTTP_TIMEOUT_S = 30.0

Wait = Callable[[float], object]
"""Blocks for that many seconds."""

Item = TypeVar("Item")
Window = bytes | memoryview
HistorySource = Literal["s3", "segment_store"]


class SegmentSource(Protocol):
    """The bytes of segments."""

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        """Links to what tier 2 holds of `[start, stop)`: contiguous from `start`, clipped, at most `limit`.

        Empty when `start` is not in tier 2 yet.
        """
        ...

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[Window]:
        """The bytes `[start, stop)` from the segment's store, in windows of its choice."""
        ...


class _ChunkFailure(Exception):
    """A chunk could not be read to its end this time; says why."""


def http_client() -> httpx.Client:
    """A client whose connections are kept for the next chunk; a range arrives as it is stored, never compressed.

    Proxies of the environment are for HTTPS only: plain HTTP is an S3 double on this machine.
    """
    tls = _tls()
    return httpx.Client(
        verify=tls,
        timeout=HTTP_TIMEOUT_S,
        headers={"accept-encoding": "identity"},
        mounts={"http://": httpx.HTTPTransport(verify=tls)},
    )


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes longer than reading a small range, so it is done once per process."""
    return httpx.create_ssl_context()


class RangeBytes:
    """Reads ranges of one stream's segments; not for use by several threads at once. Use it with `with`."""

    def __init__(self, source: SegmentSource, http: httpx.Client, *, wait: Wait, use_links: bool = True) -> None:
        self._source = source
        self._http = http
        self._wait = wait
        self._use_links = use_links
        self._pool = ThreadPoolExecutor(SMALL_CHUNKS_AT_ONCE, thread_name_prefix="headrace-chunks")

    def __enter__(self) -> RangeBytes:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def windows(self, segment_id: int, start: int, stop: int) -> Generator[Window, None, None]:
        """The bytes `[start, stop)` of a segment, in order, in windows of at most about WINDOW_BYTES.

        Raises:
            UnavailableError: S3 did not give a chunk's bytes after FAILURES_IN_A_ROW_MAX attempts in a row.
            CorruptError: tier 2 or the store gave other bytes than asked for.
            HeadraceError: what the controller or the segment store said, for example TruncatedError.
        """
        position = start
        if self._use_links:
            for window in self._linked(segment_id, start, stop):
                position += len(window)
                yield window
        if position < stop:
            for window in self._source.read(segment_id, position, stop):
                position += len(window)
                yield window
        if position != stop:
            raise CorruptError(
                f"segment {segment_id}: asked for bytes {start} to {stop}, was given bytes up to {position}",
                details={"segment": segment_id, "start": start, "stop": stop, "position": position},
            )

    def _linked(self, segment_id: int, start: int, stop: int) -> Iterator[Window]:
        """What tier 2 holds from `start` on, without a gap."""
        position, failures = start, 0
        while position < stop and (chunks := self._source.chunks(segment_id, position, stop, CHUNKS_PER_LISTING)):
            _check_contiguous(segment_id, chunks, position, stop)
            try:
                for window in self._fetch_all(chunks):
                    position += len(window)
                    failures = 0
                    yield window
            except (_ChunkFailure, httpx.TransportError) as failure:
                failures += 1
                if failures == FAILURES_IN_A_ROW_MAX:
                    raise UnavailableError(
                        f"segment {segment_id} at {position}: {failures} attempts in a row to read it from S3 failed,"
                        f" the last with: {failure or type(failure).__name__}. Check that this machine reaches S3, or"
                        " set the option read_history_from=segment_store",
                        details={"segment": segment_id, "offset": position},
                    ) from failure
                self._wait(_wait_s(failures, position))

    def _fetch_all(self, chunks: Sequence[Chunk]) -> Iterator[bytes]:
        """The chunks' bytes in order; small ones are on their way several at a time, large ones are not held whole."""
        waiting, coming = deque(chunks), deque[Future[bytes]]()
        while waiting or coming:
            while waiting and waiting[0].length <= SMALL_CHUNK_BYTES and len(coming) < SMALL_CHUNKS_AT_ONCE:
                coming.append(self._pool.submit(self._fetch_whole, waiting.popleft()))
            if coming:
                yield coming.popleft().result()
            else:
                yield from self._fetch(waiting.popleft())

    def _fetch_whole(self, chunk: Chunk) -> bytes:
        return b"".join(self._fetch(chunk))

    def _fetch(self, chunk: Chunk) -> Iterator[bytes]:
        with self._http.stream("GET", chunk.url, headers=dict(chunk.headers)) as response:
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                raise _ChunkFailure(f"HTTP status {response.status_code}")
            if response.headers.get("content-length") != str(chunk.length):  # before a wrong byte gets out
                raise _ChunkFailure(f"the answer has not the {chunk.length} bytes of the chunk")
            received = 0
            for window in response.iter_raw(WINDOW_BYTES):
                received += len(window)
                yield window
            if received < chunk.length:
                raise _ChunkFailure(f"only {received} of {chunk.length} bytes arrived")


def one_ahead(items: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """The same items; while one is being worked on, the next is fetched by a thread. Closes `items` in the end."""
    nothing = object()
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="headrace-read-ahead") as pool:
        coming = pool.submit(next, items, nothing)
        while (item := coming.result()) is not nothing:
            coming = pool.submit(next, items, nothing)
            yield item  # type: ignore[misc]


def gathered(windows: Generator[Window, None, None]) -> Generator[Window, None, None]:
    """The same bytes in windows of at least GATHERED_BYTES_MIN, but for the last."""
    held: list[Window] = []
    held_bytes = 0
    with closing(windows):
        for window in windows:
            held.append(window)
            held_bytes += len(window)
            if held_bytes >= GATHERED_BYTES_MIN:
                yield held[0] if len(held) == 1 else b"".join(held)
                held, held_bytes = [], 0
    if held:
        yield b"".join(held)


def _check_contiguous(segment_id: int, chunks: Sequence[Chunk], start: int, stop: int) -> None:
    position = start
    for chunk in chunks:
        if chunk.offset != position or chunk.length < 1 or chunk.offset + chunk.length > stop:
            raise CorruptError(
                f"segment {segment_id}: asked for chunks from {start} to {stop}, was given one at {chunk.offset} with"
                f" {chunk.length} bytes where {position} is next",
                details={"segment": segment_id, "offset": chunk.offset, "length_bytes": chunk.length},
            )
        position += chunk.length


def _wait_s(failures: int, spread: int) -> float:
    """Doubles with each failure; `spread` keeps tasks that failed together from coming back together."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * (1 << (failures - 1))) * (0.5 + spread % 1009 / 1009)

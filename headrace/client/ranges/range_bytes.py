"""The bytes of a segment range, wherever they are: history from S3 through signed links, the tail from its store.

Restartable at any byte: a link that expired, an object that the compactor replaced, a connection that broke all end in
a new listing from where the reading stopped. Raises an error when there was no progress for too long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from headrace.api.delegation_tokens import IssuedToken
from headrace.api.plans import Chunk
from headrace.api.segments import SegmentEndpoint
from headrace.client.reading.chunk_reads import ChunkReads, check_contiguous
from headrace.client.reading.object_reads import ObjectReadError, ObjectReads
from headrace.client.reading.segment_reads import SegmentReads
from headrace.client.synchronous.synchronous_admin import Admin
from headrace.codec.certificates import TrustBundle
from headrace.model.errors import CorruptError, UnavailableError

GATHERED_BYTES_MIN = 256 * 1024
"""Below this a window is joined with the next: a batch has a price of its own."""

CHUNKS_PER_LISTING = 64
"""Links are signed in advance and expire; few enough that a slow consumer seldom sees that."""

LINK_LEFT_MS_MIN = 60_000
"""A link that expires sooner is not used first. One that expires later while it is used is replaced then."""

PATIENCE_S_DEFAULT = 60.0
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0

Wait = Callable[[float], object]
"""Blocks for that many seconds. An error that it raises ends the reading."""

Item = TypeVar("Item")
Window = bytes | bytearray | memoryview
HistorySource = Literal["s3", "segment_store"]


@dataclass(frozen=True, slots=True)
class Listing:
    """Links to the first bytes of a range, contiguous up to `stored_until`; the rest was not in tier 2."""

    chunks: Sequence[Chunk]
    stored_until: int

    def is_fresh(self, now_ms: int) -> bool:
        """Whether all links can be used for a while."""
        return all(chunk.expires_at_ms > now_ms + LINK_LEFT_MS_MIN for chunk in self.chunks)


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


class RangeBytes:
    """Reads ranges of one stream's segments; not for use by several threads at once. Use it with `with`."""

    def __init__(
        self,
        source: SegmentSource,
        objects: ObjectReads,
        *,
        wait: Wait,
        use_links: bool = True,
        patience_s: float = PATIENCE_S_DEFAULT,
        monotonic_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """S3 may fail for `patience_s` without progress."""
        self._now_ms = now_ms
        self._source = source
        self._chunks = ChunkReads(objects)
        self._wait = wait
        self._patience_s = patience_s
        self._monotonic_s = monotonic_s
        self._use_links = use_links

    def __enter__(self) -> RangeBytes:
        return self

    def __exit__(self, *exception: object) -> None:
        self._chunks.close()

    def windows(
        self, segment_id: int, start: int, stop: int, listing: Listing | None = None
    ) -> Generator[Window, None, None]:
        """The bytes `[start, stop)` of a segment, in order, in windows of at most about WINDOW_BYTES.

        With a `listing` of this range the controller is asked only when a link has expired or failed.

        Raises:
            UnavailableError: S3 did not give a chunk's bytes for `patience_s`.
            CorruptError: tier 2 or the store gave other bytes than asked for.
            HeadraceError: what the controller or the segment store said, for example TruncatedError.
        """
        position = start
        if self._use_links:
            for window in self._linked(segment_id, start, stop, listing):
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

    def _linked(self, segment_id: int, start: int, stop: int, listing: Listing | None) -> Iterator[Window]:
        """What tier 2 holds from `start` on, without a gap."""
        position, failures, failing_since_s = start, 0, 0.0
        known = listing if listing is not None and listing.is_fresh(self._now_ms()) else None
        while position < stop:
            stored_until: int | None = None
            if known is None:
                chunks = self._source.chunks(segment_id, position, stop, CHUNKS_PER_LISTING)
            else:
                chunks, stored_until = known.chunks, known.stored_until
            if not chunks:
                return
            check_contiguous(segment_id, chunks, position, stop)
            try:
                for window in self._chunks.windows(chunks):
                    position += len(window)
                    failures = 0
                    yield window
                if position == stored_until:
                    return  # what is left was with the store when this was planned, and it still has it
            except ObjectReadError as failure:
                known = None
                now_s = self._monotonic_s()
                failing_since_s = failing_since_s if failures else now_s
                failures += 1
                if now_s - failing_since_s >= self._patience_s:
                    raise UnavailableError(
                        f"segment {segment_id} at {position}: {failures} attempts in a row to read it from S3 failed,"
                        f" the last with: {failure}. Check that this machine reaches S3, or set the option"
                        " read_history_from=segment_store",
                        details={"segment": segment_id, "offset": position},
                    ) from failure
                self._wait(_wait_s(failures, position))


def one_ahead(items: Generator[Item, None, None], thread: ThreadPoolExecutor) -> Generator[Item, None, None]:
    """The same items; while one is being worked on, the next is fetched by the one thread of the pool.

    In the end that thread closes `items`, when the fetch that runs is done. This does not wait for it.
    """
    nothing = object()
    coming = thread.submit(next, items, nothing)
    try:
        while (item := coming.result()) is not nothing:
            coming = thread.submit(next, items, nothing)
            yield item  # type: ignore[misc]
    finally:
        coming.cancel()
        thread.submit(items.close)


def read_ahead_thread() -> ThreadPoolExecutor:
    """The thread for `one_ahead`; it is started when it is needed."""
    return ThreadPoolExecutor(1, thread_name_prefix="headrace-read-ahead")


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


def _wait_s(failures: int, spread: int) -> float:
    """Doubles with each failure; `spread` keeps tasks that failed together from coming back together."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * (1 << (failures - 1))) * (0.5 + spread % 1009 / 1009)


# The bytes of segment ranges of one stream, for threads without an event loop.


class StreamRanges:
    """One stream; a `range_bytes.SegmentSource`. Not for use by several threads at once; not picklable."""

    def __init__(self, admin: Admin, scope: str, stream: str, *, give_up_after_s: float = 60.0) -> None:
        """After `give_up_after_s` without progress, reads raise the last error."""
        self._admin = admin
        self._tokens = admin.delegation_tokens
        self._trust = admin.trust
        self._scope, self._stream = scope, stream
        self._reads = SegmentReads(admin, scope, stream, give_up_after_s=give_up_after_s)

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        return self._admin.chunks(
            self._scope, self._stream, segment_id, from_offset=start, to_offset=stop, limit=limit
        ).chunks

    def expect(self, segment_id: int, endpoint: SegmentEndpoint) -> None:
        """Says where a segment was a moment ago, which saves a request to the controller."""
        self._reads.expect(segment_id, endpoint)

    def offer(self, token: IssuedToken) -> None:
        """Takes a token for reading the stream that another process got, unless it ends soon."""
        self._tokens.offer(self._scope, self._stream, token)

    def offer_trust(self, bundle: TrustBundle) -> None:
        """Takes the authorities of another process, unless the client has some."""
        self._trust.offer(bundle)

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        return self._reads.read(segment_id, start, stop)

    def close(self) -> None:
        """Closes the connections to the stores."""
        self._reads.close()

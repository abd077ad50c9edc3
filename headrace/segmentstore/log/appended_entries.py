"""The entries that an owner has appended, as long as a caller waits for them or a component reads their memory.

An entry is encoded, numbered, and sent. Its caller is told that it is durable when the members have acknowledged it,
and may use its memory again when the own journal has it: one may come before the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from headrace.codec.log_record_header import Codec, RecordHeader
from headrace.codec.payload_compression import compress_payload
from headrace.model.errors import HeadraceError
from headrace.ports.ledger import Done, Released
from headrace.segmentstore.log.journal.journal_commits import JOINED_PART_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer


# Threads for work on this machine alone: reads of the journal, and the compression of large entries.
#
# The threads of `asyncio.to_thread` are few, and requests to AWS occupy them for as long as AWS does not answer. A log
# must not depend on that: meanwhile its owner appends, members catch up, and other stores read copies to take over.

THREADS: Final = 8
"""More than wait for the disk at the same time (CATCH_UPS_MAX, READS_MAX), so that entries are encoded meanwhile."""

T = TypeVar("T")


class LocalThreads:
    """Started when they are needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="local")

    async def run(self, call: Callable[[], T]) -> T:
        """Call it in one of the threads. What a cancelled caller waited for runs to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Begin nothing more. Calls that wait for a thread are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)


# Turns the parts of an entry into the payload that all members store: joined, compressed or as it is, with its CRC.
#
# Traffic between zones is what copies cost most, so an owner with members in other zones compresses entries that are
# large enough. Whether that pays depends on the data: of the entries that could be compressed, one in SAMPLE_EVERY is
# a sample, and decides for those after it.

COMPRESSED_BYTES_MIN: Final = 4 << 10
"""Smaller entries cost more processor time than they save."""

INLINE_BYTES_MAX: Final = 128 << 10
"""Larger entries are compressed in another thread. The event loop would stand still for more than 0.3 ms."""

SAMPLE_EVERY: Final = 64

PAYS_BELOW: Final = 0.75
"""Compression pays if a sample shrinks to less than this part."""


class EncodedEntry(NamedTuple):
    """A payload in the form in which it travels and is stored."""

    parts: tuple[Buffer, ...]
    length: int
    checksum: int
    codec: Codec
    is_copy: bool
    """Whether the memory of the caller is not needed any more."""


class EntryEncoder:
    """The encoder of one log. `compresses` says whether it may compress at all."""

    def __init__(self, *, compresses: bool) -> None:
        self._compresses = compresses
        self._pays = False
        self._seen = 0

    def wants_compression(self, length: int) -> bool:
        """Whether to compress the next entry. Call it once for each entry."""
        if not self._compresses or length < COMPRESSED_BYTES_MIN:
            return False
        is_sample = self._seen % SAMPLE_EVERY == 0
        self._seen += 1
        return is_sample or self._pays

    def compressed(self, parts: Sequence[Buffer], length: int) -> EncodedEntry:
        """The entry compressed, or as it is if that does not pay. Callable from any thread, one call at a time."""
        payload = compress_payload(parts, length)
        self._pays = len(payload) < PAYS_BELOW * length
        if not self._pays:
            return plain(parts, length)
        return EncodedEntry((payload,), len(payload), crc32c(payload), Codec.ZSTD, is_copy=True)


def plain(parts: Sequence[Buffer], length: int) -> EncodedEntry:
    """The entry without compression. Small parts are joined once, for the journal and all links together."""
    held = tuple(parts)
    is_copy = length < JOINED_PART_BYTES_MAX * len(held)
    if is_copy:
        held = (b"".join(held),)
    checksum = 0
    for part in held:
        checksum = crc32c(part, checksum)
    return EncodedEntry(held, length, checksum, Codec.PLAIN, is_copy)


class SentEntry(NamedTuple):
    """An entry with its number, which the members get."""

    header: RecordHeader
    parts: tuple[Buffer, ...]
    released: Released | None


class _Unacknowledged(NamedTuple):
    """An entry whose caller waits. It has no memory of it, since the own journal may have it already."""

    entry: int
    sent_s: float
    done: Done


class _Unencoded(NamedTuple):
    """An entry that waits until those before it are encoded."""

    parts: Sequence[Buffer]
    length: int
    compresses: bool
    done: Done
    released: Released | None

    @property
    def takes_long(self) -> bool:
        return self.compresses and self.length > INLINE_BYTES_MAX


class AppendedEntries:
    """The entries of one log in their order.

    `number` gives an encoded entry its header, `send` sends it to the members. `run` runs a coroutine of this log.
    `now_s` is a monotonic clock.
    """

    def __init__(
        self,
        encoder: EntryEncoder,
        number: Callable[[EncodedEntry], RecordHeader],
        send: Callable[[SentEntry], None],
        run: Callable[[Coroutine[Any, Any, None]], None],
        threads: LocalThreads,
        now_s: Callable[[], float],
    ) -> None:
        self._encoder = encoder
        self._number = number
        self._send = send
        self._run = run
        self._threads = threads
        self._now_s = now_s
        self._failure: HeadraceError | None = None
        self._encoding: deque[_Unencoded] = deque()
        self._unacknowledged: deque[_Unacknowledged] = deque()
        self._unreleased: dict[int, SentEntry] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._acknowledged = -1
        self._is_reporting = False

    @property
    def unnumbered(self) -> int:
        """How many entries wait until they are encoded."""
        return len(self._encoding)

    def sent(self, entry: int) -> SentEntry:
        """An entry that the own journal does not have yet."""
        return self._unreleased[entry]

    def append(self, parts: Sequence[Buffer], length: int, done: Done, released: Released | None) -> None:
        """Encode and send an entry, behind those that wait."""
        compresses = self._encoder.wants_compression(length)
        unencoded = _Unencoded(parts, length, compresses, done, released)
        if not self._encoding and not unencoded.takes_long:
            self._submit(self._encoded(unencoded), done, released)
            return
        self._encoding.append(unencoded)
        if len(self._encoding) == 1:
            self._run(self._encode())

    def release(self, up_to: int) -> None:
        """The own journal has all entries up to this one."""
        while self._unreleased and (entry := next(iter(self._unreleased))) <= up_to:
            _call(self._unreleased.pop(entry).released)
        self._resolve_waiters()

    def acknowledged(self, up_to: int) -> float | None:
        """All entries up to this one are acknowledged: call `report` when nothing else is in the middle of its work.

        Returns the seconds since the oldest of them was sent; None if no caller waits for any.
        """
        self._acknowledged = up_to
        oldest = self._unacknowledged[0] if self._unacknowledged else None
        return None if oldest is None or oldest.entry > up_to else self._now_s() - oldest.sent_s

    def report(self) -> None:
        """Tell the callers of acknowledged entries, who may append."""
        if self._is_reporting:
            return
        self._is_reporting = True
        try:
            while self._unacknowledged and self._unacknowledged[0].entry <= self._acknowledged:
                if self._failure is not None:
                    return
                self._unacknowledged.popleft().done(None)
        finally:
            self._is_reporting = False

    def fail(self, error: HeadraceError) -> None:
        """The log has ended: the outcome of entries that are not acknowledged is not known."""
        self._failure = error
        while self._unacknowledged:
            self._unacknowledged.popleft().done(error)
        encoding, self._encoding = self._encoding, deque()
        for unencoded in encoding:
            _call(unencoded.released)
            unencoded.done(error)
        self._resolve_waiters()

    def release_all(self) -> None:
        """Nothing reads the memory of any entry: the log has ended, and the own journal is done with all of them."""
        unreleased, self._unreleased = self._unreleased, {}
        for sent in unreleased.values():
            _call(sent.released)
        self._resolve_waiters()

    async def all_released(self) -> None:
        """Return when nothing reads the memory of entries any more."""
        if self._unreleased or self._encoding:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def _encode(self) -> None:
        """Encode what waits, in its order; large entries in another thread."""
        while self._encoding:
            first = self._encoding[0]
            if first.takes_long:
                encoded = await self._threads.run(partial(self._encoded, first))
                if self._failure is not None:
                    return
            else:
                encoded = self._encoded(first)
            self._encoding.popleft()
            self._submit(encoded, first.done, first.released)

    def _encoded(self, unencoded: _Unencoded) -> EncodedEntry:
        if unencoded.compresses:
            return self._encoder.compressed(unencoded.parts, unencoded.length)
        return plain(unencoded.parts, unencoded.length)

    def _submit(self, encoded: EncodedEntry, done: Done, released: Released | None) -> None:
        if encoded.is_copy:
            _call(released)
            released = None
        sent = SentEntry(self._number(encoded), encoded.parts, released)
        self._unacknowledged.append(_Unacknowledged(sent.header.entry, self._now_s(), done))
        self._unreleased[sent.header.entry] = sent
        self._send(sent)

    def _resolve_waiters(self) -> None:
        if self._unreleased or self._encoding:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _call(released: Released | None) -> None:
    if released is not None:
        released()

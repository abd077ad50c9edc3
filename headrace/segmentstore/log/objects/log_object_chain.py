"""Takes over the objects of a log: closes its last ledger, and finds the objects that a recovery reads.

An owner acknowledges an object when it and all objects before it are durable. So a ledger is closed by a tombstone at
its first missing sequence: the owner can complete nothing from there on, and nothing from there on was acknowledged. A
tombstone is never deleted, since an owner that was paused for days must still collide with it.

The owner may be alive meanwhile, and may delete objects that tier 2 made unnecessary, also the one at the sequence
where the tombstone is put. Before it deletes, a later object says in its header from which sequence on objects are
needed, and that object stays. So the listing is repeated until a tombstone is found at the first missing sequence that
is needed. All objects that were deleted before are not needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

from headrace.codec.log_objects import (
    LOG_OBJECT_BYTES_MAX,
    LOG_OBJECT_HEADER_BYTES,
    LogObjectHeader,
    container_log_prefix,
    decode_log_object,
    decode_log_object_header,
    ledger_prefix,
    log_object_name,
    parse_log_object_name,
)
from headrace.model.backoff import doubled_pause
from headrace.model.container_logs import LedgerStart
from headrace.model.errors import AlreadyExistsError, CorruptError, NotFoundError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage, StoredObject
from headrace.ports.ledger import LedgerEntry

LISTED_AT_ONCE: Final = 1000
HEADERS_READ_AT_ONCE: Final = 16

CLOSING_ATTEMPTS_MAX: Final = 1000
"""Listings after which a takeover stops and is repeated later: the other owner is faster each time."""


class LogObject(NamedTuple):
    """An object of a log with the entries from `first` to the one before `end`."""

    epoch: int
    sequence: int
    first: int
    end: int
    stored_bytes: int
    truncated_before: int


class FoundLog(NamedTuple):
    """The objects that a recovery reads, in order; the truncation point, and the entry behind the last one."""

    objects: tuple[LogObject, ...]
    truncated_before: int
    next_entry: int


class ClosedLedger(NamedTuple):
    """The sequences of the objects of a closed ledger that may be needed, and the truncation point that it knew."""

    sequences: range
    truncated_before: int


async def close_ledger(storage: ChunkStorage, container: int, epoch: int) -> ClosedLedger:
    """Close a ledger, if it is not closed yet.

    Raises:
        CorruptError: objects that were acknowledged are missing, or one is damaged.
        ThrottledError, UnavailableError: chunk storage does not answer, or the owner was faster each time. Try again.
    """
    for _ in range(CLOSING_ATTEMPTS_MAX):
        lengths = await _list_ledger(storage, container, epoch)
        stored = [sequence for sequence, length in lengths.items() if length]
        oldest, window, truncated_before = 0, 1, 0
        if stored:
            header = await _read_header(storage, container, epoch, max(stored))
            if header is None:
                continue  # deleted since it was listed, so there is a later one
            # Of an object that is not of the log, too: it says what was durable when it was made.
            oldest, window, truncated_before = header.oldest_sequence, header.window, header.truncated_before
        end = oldest
        while lengths.get(end):
            end += 1
        if stored and max(stored) - end >= window:
            raise CorruptError(f"object {log_object_name(container, epoch, end)} is missing, which was acknowledged")
        if end in lengths:
            return ClosedLedger(range(oldest, end), truncated_before)
        try:
            await storage.put(log_object_name(container, epoch, end), ())
        except AlreadyExistsError:
            continue
    raise UnavailableError(f"the ledger of epoch {epoch} of container {container} grows while it is closed: try again")


async def find_log(
    storage: ChunkStorage, container: int, ledgers: Sequence[LedgerStart], truncated_before: int, last: ClosedLedger
) -> FoundLog:
    """The log that these ledgers make up, of which `last` is the last one.

    `truncated_before` is a lower bound of the truncation point.

    Raises:
        CorruptError: objects that are needed are missing or damaged.
        ThrottledError, UnavailableError: chunk storage does not answer.
    """
    chain: list[LogObject] = []
    bounds: list[int] = [start.first for start in ledgers[1:]]
    for start, end in zip(ledgers, bounds, strict=False):
        lengths = await _list_ledger(storage, container, start.epoch)
        stored = [sequence for sequence, length in sorted(lengths.items()) if length]
        # Behind the tombstone there may be objects that were in flight: their entries are those of the next ledger.
        objects = await _read_headers(storage, container, start.epoch, stored, lengths)
        chain += [each for each in objects if each.first < end]
    start = ledgers[-1]
    lengths = await _list_ledger(storage, container, start.epoch)
    tail = await _read_headers(
        storage, container, start.epoch, [each for each in last.sequences if lengths.get(each)], lengths
    )
    # Without an object the ledger ends where it begins, or where its owner has truncated it.
    next_entry = tail[-1].end if tail else max(start.first, last.truncated_before)
    chain += tail
    truncated_before = max([truncated_before, last.truncated_before, *(each.truncated_before for each in chain)])
    needed = [each for each in chain if each.end > truncated_before and each.end > each.first]
    _check_complete(container, needed, truncated_before, next_entry)
    return FoundLog(tuple(needed), truncated_before, next_entry)


async def delete_garbage(storage: ChunkStorage, container: int, epoch: int, needed: Iterable[LogObject]) -> int:
    """Delete the objects of ledgers before this epoch that are not needed; returns how many. Tombstones stay.

    Raises:
        ThrottledError, UnavailableError: chunk storage does not answer.
    """
    kept = {log_object_name(container, each.epoch, each.sequence) for each in needed}
    garbage = []
    for each in await _list_all(storage, container_log_prefix(container)):
        named = parse_log_object_name(each.name)
        if each.length and each.name not in kept and named is not None and named[1] < epoch:
            garbage.append(each.name)
    if garbage:
        await storage.delete(garbage)
    return len(garbage)


def _check_complete(container: int, objects: Sequence[LogObject], truncated_before: int, next_entry: int) -> None:
    """Raises CorruptError: the objects are not consecutive from the truncation point to the end."""
    if truncated_before > next_entry:
        raise CorruptError(
            f"the log of container {container} is truncated to {truncated_before} and ends before {next_entry}"
        )
    reached = truncated_before
    for position, each in enumerate(objects):
        if each.first > reached or (position and each.first != reached):
            raise CorruptError(f"the log of container {container} lacks the entries {reached} to {each.first - 1}")
        reached = each.end
    if reached < next_entry:
        raise CorruptError(f"the log of container {container} lacks the entries {reached} to {next_entry - 1}")


async def _read_headers(
    storage: ChunkStorage, container: int, epoch: int, sequences: Sequence[int], lengths: Mapping[int, int]
) -> list[LogObject]:
    """The objects with these sequences, without those that were deleted meanwhile."""
    headed: list[LogObject] = []
    for first in range(0, len(sequences), HEADERS_READ_AT_ONCE):
        batch = sequences[first : first + HEADERS_READ_AT_ONCE]
        headers = await asyncio.gather(*(_read_header(storage, container, epoch, each) for each in batch))
        for sequence, header in zip(batch, headers, strict=True):
            if header is not None:
                length = lengths[sequence]
                _check_length(container, epoch, header, length)
                headed.append(
                    LogObject(epoch, sequence, header.first_entry, header.end, length, header.truncated_before)
                )
    return headed


async def _read_header(storage: ChunkStorage, container: int, epoch: int, sequence: int) -> LogObjectHeader | None:
    name = log_object_name(container, epoch, sequence)
    try:
        return decode_log_object_header(name, await storage.read(name, 0, LOG_OBJECT_HEADER_BYTES))
    except NotFoundError:
        return None


def _check_length(container: int, epoch: int, header: LogObjectHeader, length: int) -> None:
    least = LOG_OBJECT_HEADER_BYTES + header.record_bytes
    if not least <= length <= LOG_OBJECT_BYTES_MAX:
        name = log_object_name(container, epoch, header.sequence)
        raise CorruptError(f"object {name} has {length} bytes, its header says at least {least}")


async def _list_ledger(storage: ChunkStorage, container: int, epoch: int) -> dict[int, int]:
    """The lengths of the objects of a ledger, by sequence."""
    lengths: dict[int, int] = {}
    for each in await _list_all(storage, ledger_prefix(container, epoch)):
        named = parse_log_object_name(each.name)
        if named is None:
            raise CorruptError(f"object {each.name} is among those of a log: it has no name of a log's object")
        if 0 < each.length < LOG_OBJECT_HEADER_BYTES:
            raise CorruptError(f"object {each.name} has {each.length} bytes, too few for a header")
        lengths[named[2]] = each.length
    return lengths


async def _list_all(storage: ChunkStorage, prefix: str) -> list[StoredObject]:
    stored: list[StoredObject] = []
    while True:
        page = await storage.list(prefix, after=stored[-1].name if stored else "", limit=LISTED_AT_ONCE)
        stored += page
        if len(page) < LISTED_AT_ONCE:
            return stored


# Reads the entries of a log from its objects, in a thread, while the event loop fetches the next objects.

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

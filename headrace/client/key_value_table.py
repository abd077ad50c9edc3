"""The asynchronous API for the entries of a key-value table.

The primary key determines the segment. A call that writes several entries of one primary key is atomic. A request whose
answer was lost is retried. If the retry fails because the first attempt had succeeded, the client detects this by
reading the entries.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Protocol, TypeVar

from headrace import wire
from headrace.api.key_value_tables import TableSegments
from headrace.api.segments import SegmentEndpoint
from headrace.client.administration.tables_admin import AsyncTablesAdmin
from headrace.client.backoff import Backoff
from headrace.client.closing import handle_text
from headrace.client.defaults import RETRY_TIMEOUT_S
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import REPLY_TIMEOUT_S
from headrace.client.trust import AsyncTrust
from headrace.client.writing.routing_table import Route, RoutingTable
from headrace.model.arguments import checked_calls
from headrace.model.errors import AlreadyExistsError, ConflictError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.key_value_tables import segments_owner
from headrace.model.limits import TABLE_VALUE_BYTES_MAX, WIRE_FRAME_PAYLOAD_BYTES_MAX
from headrace.model.names import segment_name
from headrace.model.routing import table_key_position
from headrace.wire.connections.asynchronous import Flow, SingleReply, answer_within, problem_of

# Keys and entries of key-value tables in the public API, and the checks of their sizes.


@dataclass(frozen=True, slots=True, order=True)
class TableKey:
    """A primary key, which determines the segment, and a secondary key. The table fixes the length of both."""

    primary: bytes
    secondary: bytes = b""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A key with its value. Each write gives the key a new `version`, which `replace` and `remove` can compare."""

    key: TableKey
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class KeyLengths:
    """The lengths of all keys of one table, in bytes."""

    primary: int
    secondary: int

    def joined(self, key: TableKey) -> bytes:
        """Returns the key as it is stored. Raises InvalidRequestError if a part has a wrong length."""
        _check_length("primary", key.primary, self.primary)
        _check_length("secondary", key.secondary, self.secondary)
        return bytes(key.primary) + bytes(key.secondary)

    def split(self, stored: bytes) -> TableKey:
        return TableKey(stored[: self.primary], stored[self.primary :])

    def first(self, primary: bytes | None, secondary: bytes | None) -> bytes:
        """Returns the smallest stored key with these parts. None means the smallest possible part."""
        return self._bound(primary, secondary, b"\0")

    def last(self, primary: bytes | None, secondary: bytes | None) -> bytes:
        """Returns the greatest stored key with these parts. None means the greatest possible part."""
        return self._bound(primary, secondary, b"\xff")

    def _bound(self, primary: bytes | None, secondary: bytes | None, rest: bytes) -> bytes:
        return self.joined(
            TableKey(
                rest * self.primary if primary is None else primary,
                rest * self.secondary if secondary is None else secondary,
            )
        )


def check_value(value: bytes) -> bytes:
    """Returns the value as bytes. Raises InvalidRequestError if it is not bytes-like or too large."""
    if not isinstance(value, bytes | bytearray | memoryview) or len(value) > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(f"the value of a table entry must be at most {TABLE_VALUE_BYTES_MAX} bytes")
    return bytes(value)


def _check_length(part: str, key: bytes, length: int) -> None:
    if not isinstance(key, bytes | bytearray) or len(key) != length:
        actual = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else type(key).__name__
        raise InvalidRequestError(
            f"the {part} keys of this table are {length} bytes, not {actual}",
            details={"part": part, "length": length},
            code="invalid_key",
        )


# Requests to the segments of one key-value table, sent to the store of the segment and retried until answered.

T = TypeVar("T", bound=wire.WireCommand)
MakeCommand = Callable[[int, str], wire.WireCommand]
"""Makes the command from the request id and the name of the segment."""


class TableSource(Protocol):
    """Finds the store of a table's segment; `admin.tables` implements it."""

    delegation_tokens: AsyncDelegationTokens
    trust: AsyncTrust

    async def endpoint(self, scope: str, table: str, segment_id: int) -> SegmentEndpoint: ...


class Attempts:
    """Whether the answer to an earlier attempt of a request was lost, so that the store may have executed it."""

    def __init__(self) -> None:
        self.answer_lost = False


class TableSegmentRequests:
    """Sends requests over one connection per store, which concurrent requests share."""

    def __init__(self, source: TableSource, scope: str, table: str) -> None:
        self._scope, self._table = scope, table
        self._connections = SegmentConnections(source, scope, table)

    async def ask(self, segment_id: int, make: MakeCommand, expected: type[T], attempts: Attempts | None = None) -> T:
        """Sends a request until it is answered. Returns the reply, of type `expected`.

        Raises:
            ConflictError: code "table_key_version": a key has another version or does not exist.
            NotFoundError: the table was deleted.
            InvalidRequestError: the store rejects the request.
            UnavailableError: no store could be reached for RETRY_TIMEOUT_S.
        """
        backoff = Backoff(RETRY_TIMEOUT_S)
        while True:
            try:
                return await self._try(segment_id, make, expected, attempts)
            except HeadraceError as problem:
                if problem.retry == "never" or isinstance(problem, ConflictError):
                    raise
                self._connections.forget(segment_id)
                await backoff.wait(problem)

    async def close(self) -> None:
        await self._connections.close()

    async def _try(self, segment_id: int, make: MakeCommand, expected: type[T], attempts: Attempts | None) -> T:
        connection = await self._connections.to_segment(segment_id)
        replies = SingleReply()
        flow = connection.open_flow(replies, segment_id)
        try:
            command = make(flow.next_id(), segment_name(self._scope, segments_owner(self._table), segment_id))
            waiting = replies.ask(flow, command)
            try:
                reply = await answer_within(flow, waiting, REPLY_TIMEOUT_S)
            except HeadraceError:
                if attempts is not None and replies.is_sent:
                    attempts.answer_lost = True
                raise
            if isinstance(reply, expected):
                return reply
            raise self._problem(flow, reply)
        finally:
            flow.close()

    def _problem(self, flow: Flow, reply: wire.WireCommand) -> HeadraceError:
        problem = problem_of(flow, reply)
        if problem.specific_code in ("table_key_missing", "table_key_version"):
            return ConflictError(
                f"a key of table {self._scope}/{self._table} has another version or does not exist: read it again",
                code="table_key_version",
            )
        if isinstance(problem, NotFoundError):
            return NotFoundError(
                f"key-value table {self._scope}/{self._table} was deleted",
                details={"scope": self._scope, "table": self._table},
            )
        return problem


# Reads the segments of a table page by page in key order, and merges them into one sequence in key order.

Keyed = TypeVar("Keyed")


async def pages_of_entries(
    requests: TableSegmentRequests, segment: int, low: bytes, high: bytes, page: int
) -> AsyncIterator[tuple[bytes, wire.TableEntry]]:
    """Yields the entries of one segment with stored keys from `low` to `high`, `page` per request.

    Each item is the stored key and the entry.
    """
    token = b""
    while True:
        reply = await requests.ask(segment, partial(_read_entries, page, token, low, high), wire.TableEntriesRead)
        if not reply.entries:
            return
        token = bytes(reply.continuation_token)
        for entry in reply.entries:
            yield entry.key, entry


async def pages_of_keys(
    requests: TableSegmentRequests, segment: int, low: bytes, high: bytes, page: int
) -> AsyncIterator[tuple[bytes, wire.TableKey]]:
    """Like `pages_of_entries`, without values."""
    token = b""
    while True:
        reply = await requests.ask(segment, partial(_read_keys, page, token, low, high), wire.TableKeysRead)
        if not reply.keys:
            return
        token = bytes(reply.continuation_token)
        for key in reply.keys:
            yield key.key, key


async def merged(sources: Sequence[AsyncIterator[tuple[bytes, Keyed]]]) -> AsyncIterator[tuple[bytes, Keyed]]:
    """Merges sources into one sequence in key order. Each source must be in order, and no key may be in two sources."""
    firsts = await asyncio.gather(*(anext(source, None) for source in sources))
    heap = [(first[0], index, first[1]) for index, first in enumerate(firsts) if first is not None]
    heapq.heapify(heap)
    while heap:
        key, index, value = heap[0]
        yield key, value
        following = await anext(sources[index], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following[0], index, following[1]))


def _read_entries(page: int, token: bytes, low: bytes, high: bytes, number: int, name: str) -> wire.WireCommand:
    return wire.ReadTableEntries(number, name, "", page, token, b"", low, high)


def _read_keys(page: int, token: bytes, low: bytes, high: bytes, number: int, name: str) -> wire.WireCommand:
    return wire.ReadTableKeys(number, name, "", page, token, b"", low, high)


BATCH_KEYS_MAX: Final = 256
"""The number of keys that one batch may change, as in Pravega."""

BATCH_BYTES_MAX: Final = WIRE_FRAME_PAYLOAD_BYTES_MAX - 64 * 1024
"""The size of the keys and values of one batch. The rest of a frame holds lengths, versions and the segment's name."""

ENTRY_OVERHEAD_BYTES: Final = 24
GET_KEYS_AT_ONCE_MAX: Final = WIRE_FRAME_PAYLOAD_BYTES_MAX // 2 // (TABLE_VALUE_BYTES_MAX + 16 * 1024)
"""The number of keys in one read request, so that the answer fits a frame even if all values have the maximum size."""

PAGE_ENTRIES: Final = 256


@checked_calls()
class AsyncKeyValueTable:
    """Reads and writes entries of one table. Open it with `AsyncHeadrace.key_value_table`, use it with `async with`.

    Every method raises InvalidRequestError (code "invalid_key") for a key of a wrong length, NotFoundError if the table
    was deleted, and UnavailableError if its stores could not be reached for too long.
    """

    def __init__(self, admin: AsyncTablesAdmin, scope: str, table: str, described: TableSegments) -> None:
        self.scope, self.table = scope, table
        self._requests = TableSegmentRequests(admin, scope, table)
        self._lengths = KeyLengths(described.primary_key_length, described.secondary_key_length)
        self._routes = RoutingTable(Route(segment.key_range, segment.segment_id) for segment in described.segments)
        self._closed = False

    def __repr__(self) -> str:
        return handle_text(self, f"{self.scope}/{self.table}", closed=self.closed)

    # One key

    async def get(self, primary: bytes, secondary: bytes = b"") -> TableEntry | None:
        """Returns the entry of a key, None if the table does not have the key."""
        (entry,) = await self.get_all([TableKey(primary, secondary)])
        return entry

    async def put(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        """Writes an entry unconditionally. Returns its new version."""
        return await self._update_one(TableKey(primary, secondary), value, wire.NO_VERSION)

    async def insert(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        """Writes an entry if the table does not have the key, else raises AlreadyExistsError. Returns its version."""
        key = TableKey(primary, secondary)
        try:
            return await self._update_one(key, value, wire.NOT_EXISTS)
        except ConflictError as error:
            raise AlreadyExistsError(f"table {self.scope}/{self.table} already has the key {key}") from error

    async def replace(self, primary: bytes, value: bytes, version: int, secondary: bytes = b"") -> int:
        """Writes an entry if the key has this version. Returns the new version.

        Raises ConflictError, code "table_key_version", if the key has another version or does not exist.
        """
        return await self._update_one(TableKey(primary, secondary), value, _checked_version(version))

    async def remove(self, primary: bytes, secondary: bytes = b"", *, version: int | None = None) -> None:
        """Removes a key if it exists. With `version`, raises ConflictError if the key has another version."""
        await self.remove_all(primary, {secondary: version})

    # Several keys

    async def get_all(self, keys: Sequence[TableKey]) -> list[TableEntry | None]:
        """Returns the entries in the order of `keys`, None for missing ones. The reads are not one snapshot."""
        stored = [self._lengths.joined(key) for key in keys]
        of_segment: dict[int, dict[bytes, None]] = {}
        for key, joined in zip(keys, stored, strict=True):
            of_segment.setdefault(self._segment_of(key.primary), {})[joined] = None
        reads = (self._read(segment, list(asked)) for segment, asked in of_segment.items())
        present: dict[bytes, TableEntry] = {}
        for entries in await asyncio.gather(*reads):
            present |= entries
        return [present.get(joined) for joined in stored]

    async def update_all(self, primary: bytes, changes: Mapping[bytes, tuple[bytes, int | None]]) -> dict[bytes, int]:
        """Writes several entries of one primary key atomically. Returns the new versions by secondary key.

        `changes` has, by secondary key, the value and the condition: None for no condition, NOT_EXISTS (-1) for a key
        that must not exist, else the version that the key must have.

        Raises:
            ConflictError: code "table_key_version": a condition does not hold; nothing was written.
            InvalidRequestError: there are no changes, or more than BATCH_KEYS_MAX keys or BATCH_BYTES_MAX bytes.
        """
        _check_count(len(changes))
        entries = tuple(
            wire.TableEntry(
                self._lengths.joined(TableKey(primary, secondary)),
                wire.NO_VERSION if version is None else version,
                check_value(value),
            )
            for secondary, (value, version) in changes.items()
        )
        size_bytes = sum(len(entry.key) + len(entry.value) + ENTRY_OVERHEAD_BYTES for entry in entries)
        if size_bytes > BATCH_BYTES_MAX:
            raise InvalidRequestError(f"a batch of {size_bytes} bytes is too large: at most {BATCH_BYTES_MAX}")
        versions = await self._update(self._segment_of(primary), entries)
        return dict(zip(changes, versions, strict=True))

    async def remove_all(self, primary: bytes, conditions: Mapping[bytes, int | None]) -> None:
        """Removes several keys of one primary key atomically.

        `conditions` has, by secondary key, the version that the key must have, or None. Raises the same errors as
        `update_all`.
        """
        _check_count(len(conditions))
        keys = tuple(
            wire.TableKey(
                self._lengths.joined(TableKey(primary, secondary)),
                wire.NO_VERSION if version is None else _checked_version(version),
            )
            for secondary, version in conditions.items()
        )
        segment, attempts = self._segment_of(primary), Attempts()
        try:
            await self._requests.ask(
                segment,
                lambda number, name: wire.RemoveTableKeys(number, name, "", keys),
                wire.TableKeysRemoved,
                attempts,
            )
        except ConflictError:
            if not attempts.answer_lost or await self._read(segment, [key.key for key in keys]):
                raise

    # Iteration

    async def entries(
        self,
        *,
        primary: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
        page: int = PAGE_ENTRIES,
    ) -> AsyncIterator[TableEntry]:
        """Yields entries in the order of their keys, from `first` to `last` inclusive; None means no bound.

        With `primary` it yields the entries of this primary key, and the bounds are secondary keys. Otherwise they are
        primary keys. Entries that are written or removed during the iteration may or may not appear.
        """
        segments, low, high = self._range(primary, first, last)
        pages = [pages_of_entries(self._requests, segment, low, high, page) for segment in segments]
        async for stored, entry in merged(pages):
            yield TableEntry(self._lengths.split(stored), bytes(entry.value), entry.version)

    async def keys(
        self,
        *,
        primary: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
        page: int = PAGE_ENTRIES,
    ) -> AsyncIterator[tuple[TableKey, int]]:
        """Yields keys with their versions. Like `entries`, but without reading the values."""
        segments, low, high = self._range(primary, first, last)
        pages = [pages_of_keys(self._requests, segment, low, high, page) for segment in segments]
        async for stored, key in merged(pages):
            yield self._lengths.split(stored), key.version

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._closed = True
        await self._requests.close()

    async def __aenter__(self) -> AsyncKeyValueTable:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _update_one(self, key: TableKey, value: bytes, version: int) -> int:
        entry = wire.TableEntry(self._lengths.joined(key), version, check_value(value))
        (written,) = await self._update(self._segment_of(key.primary), (entry,))
        return written

    async def _update(self, segment: int, entries: tuple[wire.TableEntry, ...]) -> tuple[int, ...]:
        attempts = Attempts()
        try:
            reply = await self._requests.ask(
                segment,
                lambda number, name: wire.UpdateTableEntries(number, name, "", entries),
                wire.TableEntriesUpdated,
                attempts,
            )
        except ConflictError:
            if not attempts.answer_lost:
                raise
            present = await self._read(segment, [entry.key for entry in entries])
            if any(entry.key not in present or present[entry.key].value != entry.value for entry in entries):
                raise
            return tuple(present[entry.key].version for entry in entries)
        return reply.versions

    async def _read(self, segment: int, stored: Sequence[bytes]) -> dict[bytes, TableEntry]:
        """Reads the keys of one segment. Returns the existing entries by stored key."""
        present: dict[bytes, TableEntry] = {}
        for first in range(0, len(stored), GET_KEYS_AT_ONCE_MAX):
            keys = tuple(wire.TableKey(key) for key in stored[first : first + GET_KEYS_AT_ONCE_MAX])
            reply = await self._requests.ask(segment, partial(_read_table, keys), wire.TableRead)
            present |= {
                entry.key: TableEntry(self._lengths.split(entry.key), bytes(entry.value), entry.version)
                for entry in reply.entries
                if entry.version != wire.NOT_EXISTS
            }
        return present

    def _range(self, primary: bytes | None, first: bytes | None, last: bytes | None) -> tuple[list[int], bytes, bytes]:
        """Returns the segments to read, and the bounds as stored keys."""
        if primary is None:
            return self._routes.targets(), self._lengths.first(first, None), self._lengths.last(last, None)
        low, high = self._lengths.first(primary, first), self._lengths.last(primary, last)
        return [self._segment_of(primary)], low, high

    def _segment_of(self, primary: bytes) -> int:
        return self._routes.target_of(table_key_position(bytes(primary)))


async def open_table(admin: AsyncTablesAdmin, scope: str, table: str) -> AsyncKeyValueTable:
    """Opens a table. Raises NotFoundError if there is no such table."""
    return AsyncKeyValueTable(admin, scope, table, await admin.segments(scope, table))


def _read_table(keys: tuple[wire.TableKey, ...], number: int, name: str) -> wire.WireCommand:
    return wire.ReadTable(number, name, "", keys)


def _checked_version(version: int) -> int:
    if version < 0:
        raise InvalidRequestError(f"{version} is not the version of an entry: pass one that a read or a write returned")
    return version


def _check_count(count: int) -> None:
    if not 1 <= count <= BATCH_KEYS_MAX:
        raise InvalidRequestError(f"a batch changes 1 to {BATCH_KEYS_MAX} keys, not {count}")

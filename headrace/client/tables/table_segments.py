"""Requests to the segments of one key-value table, sent to the store of the segment and retried until answered."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from headrace import wire
from headrace.api.segments import SegmentEndpoint
from headrace.client.backoff import Backoff
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import REPLY_TIMEOUT_S, RETRY_TIMEOUT_S
from headrace.model.errors import ConflictError, HeadraceError, NotFoundError
from headrace.model.key_value_tables import segments_owner
from headrace.model.names import segment_name
from headrace.wire.connections.asynchronous import Flow, SingleReply, answer_within, problem_of

T = TypeVar("T", bound=wire.WireCommand)
MakeCommand = Callable[[int, str], wire.WireCommand]
"""Makes the command from the request id and the name of the segment."""


class TableSource(Protocol):
    """Finds the store of a table's segment; `admin.tables` implements it."""

    delegation_tokens: AsyncDelegationTokens

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
    heap = [(one[0], index, one[1]) for index, one in enumerate(firsts) if one is not None]
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

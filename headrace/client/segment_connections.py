"""The connections to the stores of one stream's segments: finds the store of a segment, and shares one per store."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from headrace.api.segments import SegmentEndpoint
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.ownership import Ownership, Unpicklable, keep_in_children
from headrace.client.trust import AsyncTrust
from headrace.futures import mark_retrieved
from headrace.model.errors import HeadraceError, IllegalStateError, UnavailableError
from headrace.wire.connections.asynchronous import AsyncConnection, open_connection
from headrace.wire.tls import STORE_NOT_TRUSTED, StoreTls


class EndpointSource(Protocol):
    """Finds the store of a segment; the admin implements it."""

    @property
    def delegation_tokens(self) -> AsyncDelegationTokens: ...

    @property
    def trust(self) -> AsyncTrust: ...

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint: ...


_Address = tuple[str, int, str]
"""Host, port, and the name in the certificate."""


class SegmentConnections(Unpicklable):
    """Connections to the stores of one stream's segments: one per store, opened on first use.

    They put `tokens` into requests, if the deployment wants delegation tokens, and use TLS with stores that have a name
    in their certificate. The connection to a store that stops
    answering is closed when another store has a segment of which a reply is still to come. Until then it may only be
    slow.
    """

    def __init__(self, source: EndpointSource, scope: str, stream: str) -> None:
        self.tokens = source.delegation_tokens
        self._source = source
        self._scope, self._stream = scope, stream
        self._endpoints: dict[int, SegmentEndpoint] = {}
        self._connections: dict[_Address, asyncio.Task[AsyncConnection]] = {}
        self._tasks: set[asyncio.Task[AsyncConnection]] = set()
        self._searches: dict[AsyncConnection, asyncio.Task[None]] = {}
        self._is_closed = False
        self._ownership = Ownership()
        keep_in_children(self)

    async def to_segment(self, segment_id: int) -> AsyncConnection:
        """Returns a connection to the segment's store. Its address is cached, so the store may have lost the segment.

        Raises:
            UnavailableError: no store owns the segment now, or it cannot be reached, or its certificate is refused. The
                next call looks it up again.
            NotFoundError: the stream or the segment does not exist.
            IllegalStateError: the connections are closed, or belong to another process or event loop.
        """
        self._ownership.check()
        endpoint = self._endpoints.get(segment_id)
        if endpoint is None:
            endpoint = await self._source.endpoint(self._scope, self._stream, segment_id)
            self._endpoints[segment_id] = endpoint
        try:
            return await self._connection(endpoint.host, endpoint.port, endpoint.tls_name)
        except HeadraceError:
            self.forget(segment_id)
            raise

    def zone_of(self, segment_id: int) -> str:
        """The id of the zone of the segment's store, as far as its address is known; else ""."""
        endpoint = self._endpoints.get(segment_id)
        return "" if endpoint is None else endpoint.zone

    def forget(self, segment_id: int) -> None:
        """Drops the cached address of the segment's store, because it is wrong or no longer needed."""
        self._endpoints.pop(segment_id, None)

    async def close(self) -> None:
        """Closes all connections at once. Requests that wait for one fail, so that none is opened behind the close."""
        self._is_closed = True
        if self._ownership.has_gone():
            return
        tasks, self._tasks = self._tasks, set()
        self._connections.clear()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            else:
                task.cancel()
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        await asyncio.gather(*tasks, *searches, return_exceptions=True)

    async def _connection(self, host: str, port: int, tls_name: str) -> AsyncConnection:
        if self._is_closed:
            raise _closed()
        task = self._connections.get((host, port, tls_name))
        if task is not None and _is_spent(task):
            task = None
        if task is None:
            task = asyncio.ensure_future(self._open(host, port, tls_name))
            task.add_done_callback(mark_retrieved)
            self._connections[host, port, tls_name] = task
            self._tasks = {task for task in self._tasks if not _is_spent(task) or _is_open(task)} | {task}
        # Other callers wait for the same connection: cancelling one must not cancel it for them.
        if not task.done():
            await asyncio.wait({task})
        if task.cancelled():
            raise _closed()
        return task.result()

    async def _open(self, host: str, port: int, tls_name: str) -> AsyncConnection:
        if not tls_name:
            return await open_connection(host, port, self.tokens, self._search)
        trust = self._source.trust
        context = await trust.context()
        try:
            return await open_connection(host, port, self.tokens, self._search, StoreTls(context, tls_name))
        except UnavailableError as problem:
            if problem.specific_code != STORE_NOT_TRUSTED:
                raise
            renewed = await trust.renewed(context, problem)
            if renewed is None:
                raise
        return await open_connection(host, port, self.tokens, self._search, StoreTls(renewed, tls_name))

    def _search(self, connection: AsyncConnection) -> None:
        """Looks for other owners of a silent store's segments, unless a search is on its way."""
        if connection not in self._searches and not self._is_closed:
            search = self._searches[connection] = asyncio.ensure_future(self._close_if_moved(connection))
            search.add_done_callback(lambda _: self._searches.pop(connection))

    async def _close_if_moved(self, connection: AsyncConnection) -> None:
        awaited = connection.awaited_segments()
        if not awaited:
            return
        try:
            # Any of them: they may move at different times. The next silent period asks again.
            present = await self._source.endpoint(self._scope, self._stream, random.choice(awaited))
        except HeadraceError:
            return
        at = connection.host, connection.port
        if (present.host, present.port) != at:
            self._endpoints = {
                each: endpoint for each, endpoint in self._endpoints.items() if (endpoint.host, endpoint.port) != at
            }
            connection.close("has stopped answering, and another store has its segments")


def _closed() -> IllegalStateError:
    return IllegalStateError("the connections to the segment stores are closed", code="connections_closed")


def _is_spent(task: asyncio.Task[AsyncConnection]) -> bool:
    if not task.done():
        return False
    if task.cancelled() or task.exception() is not None:
        return True
    return task.result().retired or task.result().closed is not None


def _is_open(task: asyncio.Task[AsyncConnection]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().closed is None

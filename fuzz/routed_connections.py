"""Connections that lead to the owners of containers, and end when a container has another owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fuzz.connections import SocketConnection
from headrace import wire
from headrace.metadata.cluster_records import claim_key, decode_claim
from headrace.model.names import container_of_segment
from headrace.ports.metadata_store import MetadataStore

_POLL_S: Final = 0.1
_ACKNOWLEDGED = (wire.DataAppended, wire.TableEntriesUpdated)
"""Replies that no store gives without a new entry in the log."""

_AWS_IS_AWAY: Final = "did not serve this"
"""In the message of a store that asked DynamoDB or S3 in vain."""


class Router:
    """Follows the claims of all containers. `acknowledged` hears of each acknowledged change of a container."""

    def __init__(self, metadata: MetadataStore, container_count: int, acknowledged: Callable[[int], None]) -> None:
        self._metadata = metadata
        self._keys = [claim_key(container) for container in range(container_count)]
        self.acknowledged = acknowledged
        self._owners: dict[int, tuple[int, str, int]] = {}
        self._connections: set[RoutedConnection] = set()

    @property
    def container_count(self) -> int:
        return len(self._keys)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            records = await asyncio.to_thread(self._metadata.get_many, self._keys)
            for container, record in enumerate(records):
                if record is not None:
                    claim = decode_claim(record.body)
                    self._owners[container] = record.version, claim.host, claim.port
            for connection in tuple(self._connections):
                connection.end_if_moved()
            await asyncio.sleep(_POLL_S)

    def owner(self, container: int) -> tuple[int, str, int]:
        """Epoch, host and port; raises ConnectionError without an owner."""
        try:
            return self._owners[container]
        except KeyError:
            raise ConnectionError(f"container {container} has no owner yet") from None

    async def connect(self) -> RoutedConnection:
        connection = RoutedConnection(self)
        self._connections.add(connection)
        return connection

    def forget(self, connection: RoutedConnection) -> None:
        self._connections.discard(connection)


class RoutedConnection:
    """As `Connection`: one socket to the owner of each container that was asked for anything.

    `receive` reads from the socket of the last request. A writer's blocks go where its writer was set up.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._sockets: dict[int, tuple[int, SocketConnection]] = {}
        self._writers: dict[int, int] = {}
        self._last = -1

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        self._last = self._container_of(command)
        if self._last not in self._sockets:
            epoch, host, port = self._router.owner(self._last)
            self._sockets[self._last] = epoch, await SocketConnection.open(port, host)
        self.send(command)
        return await self.receive()

    def send(self, command: wire.WireCommand) -> None:
        self._last = self._container_of(command)
        if isinstance(command, wire.SetupAppend):
            self._writers[command.writer_id] = self._last
        self._sockets[self._last][1].send(command)

    async def receive(self) -> wire.WireCommand:
        container = self._last
        reply = await self._sockets[container][1].receive()
        if isinstance(reply, _ACKNOWLEDGED):
            self._router.acknowledged(container)
        if isinstance(reply, wire.ErrorMessage) and _AWS_IS_AWAY in reply.message:
            raise ConnectionError(reply.message)  # a store that is cut off: what it was asked is asked again
        return reply

    def end_if_moved(self) -> None:
        """Close what leads to former owners, so that requests there fail."""
        for container, (epoch, socket) in self._sockets.items():
            if self._router.owner(container)[0] != epoch:
                socket.break_off()

    def close(self) -> None:
        self._router.forget(self)
        for _, socket in self._sockets.values():
            socket.close()

    def _container_of(self, command: wire.WireCommand) -> int:
        for field in ("segment", "target", "parent_segment"):
            name = getattr(command, field, None)
            if name is not None:
                return container_of_segment(str(name), self._router.container_count)
        return self._writers[getattr(command, "writer_id")]  # noqa: B009 - of any command of a writer

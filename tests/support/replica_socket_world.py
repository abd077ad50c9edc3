"""The world of `replicated_world` over real sockets, with a proxy in front of each process."""

from __future__ import annotations

from replica_sockets import Proxy, identity
from replicated_world import ReplicatedWorld

from headrace.adapters.tcp.listener import bind_socket
from headrace.adapters.tcp.replica_links import TcpReplicaLinks
from headrace.adapters.tcp.replica_listener import ReplicaListener
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import ReplicaAddress
from headrace.ports.replicas import ReplicaLinks
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions


class SocketWorld(ReplicatedWorld):
    """`proxies` harm what passes to a replica, and back from it."""

    def __init__(self) -> None:
        super().__init__()
        self.proxies: dict[ReplicaId, Proxy] = {}
        self._listeners: dict[ReplicaId, ReplicaListener] = {}

    async def connect(self, sessions: ReplicaSessions) -> ReplicaLinks:
        replica = sessions.replica
        listener = self._listeners[replica] = ReplicaListener(sessions, identity(replica))
        bound = bind_socket("127.0.0.1", 0)
        port = bound.getsockname()[1]
        await listener.start(bound)
        self.proxies[replica] = proxy = Proxy(port)
        proxy.start()
        return TcpReplicaLinks(identity(replica), self._address_of)

    async def disconnect(self, replica: ReplicaId) -> None:
        await self._listeners.pop(replica).close()
        await self.proxies.pop(replica).close()

    def _address_of(self, replica: ReplicaId) -> ReplicaAddress | None:
        proxy = self.proxies.get(replica)
        return None if proxy is None else ReplicaAddress("127.0.0.1", proxy.port)

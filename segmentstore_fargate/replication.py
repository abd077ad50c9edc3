"""The replicated logs of one process over TCP: its port for other stores, its links, and its protection on ECS."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from headrace.adapters.tcp.listener import bind_socket
from headrace.adapters.tcp.replica_links import TcpReplicaLinks
from headrace.adapters.tcp.replica_listener import ReplicaListener
from headrace.adapters.tcp.replica_protocol import LinkIdentity
from headrace.model.cluster import ReplicationStatus
from headrace.model.container_logs import ReplicaId
from headrace.ports.clock import Clock
from headrace.ports.journal_disk import JournalDisk
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.journal.replica_identity import load_identity
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions, recovered_logs
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedgers
from segmentstore_fargate.config import StoreConfig
from segmentstore_fargate.replicated_logs import ReplicatedLogs
from segmentstore_fargate.replication_metrics import MeasuredReplication
from segmentstore_fargate.task_protection import TaskProtection, task_protection
from segmentstore_fargate.tls_upkeep import TlsUpkeep

_log = logging.getLogger(__name__)


class Replication:
    """`on_damage` and `on_ended` are as in `ReplicatedLogs`."""

    def __init__(
        self,
        config: StoreConfig,
        environment: Mapping[str, str],
        disk: JournalDisk,
        journal: Journal,
        metadata_store: MetadataStore,
        clock: Clock,
        on_damage: Callable[[int, Exception], None],
        on_ended: Callable[[], Awaitable[None]],
        tls: TlsUpkeep,
    ) -> None:
        self._config = config
        self._tls = tls
        self._environment = environment
        self._metadata_store = metadata_store
        self._disk = disk
        self._journal = journal
        self._clock = clock
        self._on_damage = on_damage
        self._logs = ReplicatedLogs(
            journal,
            metadata_store,
            clock,
            config.container_count,
            on_damage,
            on_ended,
            compresses=config.compresses_log,
        )
        self._bound: socket.socket | None = None
        self._links: TcpReplicaLinks | None = None
        self._listener: ReplicaListener | None = None
        self._protection: TaskProtection | None = None

    @property
    def ledgers(self) -> ReplicatedLedgers:
        """The logs that this process owns."""
        return self._logs.ledgers

    @property
    def known_replica(self) -> str:
        """The id of the replica on this volume, in hexadecimal digits; "" if the journal has none before its start."""
        return (load_identity(self._disk) or b"").hex()

    @property
    def measured(self) -> MeasuredReplication:
        """For the metrics page."""
        return MeasuredReplication(self.ledgers, lambda: {} if self._links is None else self._links.round_trips())

    def bind(self) -> int:
        """Reserve the port for other stores, which the lease names. Raises OSError if it is taken."""
        self._bound = bind_socket(self._config.listen_host, self._config.replica_port)
        return int(self._bound.getsockname()[1])

    async def start(self) -> ReplicaId:
        """Serve the own replicas. The journal has started, and the port is bound. Returns the id of the own replica."""
        assert self._bound is not None
        sessions = ReplicaSessions(self._journal, recovered_logs(self._journal), self._on_damage)
        config, incarnation = self._config, self._clock.now_ms()
        identity = LinkIdentity(config.cluster_id, sessions.replica, incarnation, config.replica_secret)
        metrics = self.ledgers.metrics
        self._links = TcpReplicaLinks(
            identity,
            self._logs.peers.address_of,
            tls=self._tls.links,
            on_batch=metrics.batch_bytes.record,
            on_sent=metrics.count_sent,
            on_corrupt=metrics.count_corrupt_message,
        )
        self._listener = ReplicaListener(
            sessions, identity, tls=self._tls.stores, on_corrupt=metrics.count_corrupt_message
        )
        await self._listener.start(self._bound)
        self._logs.start(sessions, self._links)
        self._protection = task_protection(
            self._environment, self._metadata_store, self._clock, sessions.replica, config.container_count
        )
        if self._protection is not None:
            self._protection.start()
        _log.info("event=replica_serves replica=%s", sessions.replica.hex())
        return sessions.replica

    async def watch_peers(self) -> None:
        """As `ReplicatedLogs.watch_peers`."""
        await self._logs.watch_peers()

    async def leave(self, deadline_s: float) -> None:
        """As `ReplicatedLogs.leave`."""
        await self._logs.leave(deadline_s)

    async def stop(self) -> None:
        """End links, logs and replicas. The journal is closed afterwards."""
        if self._protection is not None:
            await self._protection.stop()
        await self._logs.stop()
        if self._listener is not None:
            await self._listener.close()
        elif self._bound is not None:
            self._bound.close()

    def status(self) -> ReplicationStatus:
        """As `ReplicatedLogs.status`."""
        return self._logs.status()

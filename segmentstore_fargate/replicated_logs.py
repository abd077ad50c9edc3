"""What a process does for logs with copies, over any kind of links: plans, peers, status, garbage, and leaving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.cluster import ReplicationStatus
from headrace.model.container_logs import COPIES_MIN, ReplicaId
from headrace.model.errors import HeadraceError
from headrace.model.replication_health import keeps_leaving_store
from headrace.model.store_volume import DiskWatch
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.replicas import ReplicaLinks
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.replication.log_recovery import LogRecovery
from headrace.replication.member_states import MemberState
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.log.replicated.owned_log import OwnedLog
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedgers
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from segmentstore_fargate.peer_stores import PeerStores

_log = logging.getLogger(__name__)

ISOLATED_AFTER_S: Final = 3.0
"""A store that reaches no replica of another store for this long says so in its lease."""

LEAVING_POLL_S: Final = 0.5

GARBAGE_EVERY_S: Final = 30.0
"""Interval of the look for copies that no log needs. It costs a read only if nothing is heard of a copy."""


class ReplicatedLogs:
    """`on_damage` is called when a held entry cannot be read: only a new start finds out what is damaged.

    `on_ended` is called when this store has ended the lease of another one.
    """

    def __init__(
        self,
        journal: EntryJournal,
        metadata_store: MetadataStore,
        clock: Clock,
        container_count: int,
        on_damage: Callable[[int, Exception], None],
        on_ended: Callable[[], Awaitable[None]],
        *,
        compresses: bool = False,
        writer_bounds: WriterBounds | None = None,
        recovery_bounds: RecoveryBounds | None = None,
    ) -> None:
        self._journal = journal
        self._disk = DiskWatch()
        self._is_stalled = False
        self._metadata_store = metadata_store
        self._clock = clock
        self._container_count = container_count
        self.ledgers = ReplicatedLedgers(
            journal,
            ContainerLogRecords(metadata_store),
            clock,
            self._plan,
            on_damage,
            writer_bounds=writer_bounds,
            recovery_bounds=recovery_bounds,
            compresses=compresses,
        )
        self.peers = PeerStores(ClusterRecords(metadata_store), clock, container_count, self._silent_s, on_ended)
        self._links: ReplicaLinks | None = None
        self._garbage: PeriodicTask | None = None

    def start(self, sessions: ReplicaSessions, links: ReplicaLinks) -> None:
        """Use the own replicas and those of others. Call it when the journal has started."""
        self._links = links
        self.ledgers.start(sessions, links)
        self._garbage = PeriodicTask(
            partial(self._drop_garbage, sessions), self._garbage_stays, retry_first_s=GARBAGE_EVERY_S
        )
        self._garbage.start(Rest.fixed(GARBAGE_EVERY_S))

    async def watch_peers(self) -> None:
        """Find the other stores, and notice from now on which of them come and go.

        Raises:
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        await self.peers.start()

    async def leave(self, deadline_s: float) -> None:
        """Keep the replicas of this store until no log needs them any more, or until `deadline_s`.

        While other stores serve, owners replace this one in their logs. If all stores leave at once, each container is
        flushed to tier 2 and its log emptied, for which its owner needs a second copy to the end.
        """
        while self._links is not None and self._clock.monotonic_s() < deadline_s:
            try:
                if not await asyncio.to_thread(self._is_needed):
                    return
            except HeadraceError as error:
                _log.warning("event=leaving_not_checked error=%r", error.message)
            await asyncio.sleep(LEAVING_POLL_S)

    async def stop(self) -> None:
        """End logs, links and own replicas. The journal is closed afterwards."""
        if self._garbage is not None:
            await self._garbage.stop()
        await self.peers.stop()
        await self.ledgers.close()

    def status(self) -> ReplicationStatus:
        """What the lease of this store says of its logs."""
        owned = self.ledgers.owned
        blocked = tuple(sorted(container for container, each in owned.items() if each.blocked_by))
        logs = [each.log for each in owned.values()]
        incomplete = sum(log is not None and len(log.members) < log.copies for log in logs)
        return ReplicationStatus(self._is_isolated(), blocked, incomplete, self._has_stalled_disk(owned.values()))

    def _is_needed(self) -> bool:
        leases = [stored.lease for stored in ClusterRecords(self._metadata_store).leases()]
        logs = ContainerLogRecords(self._metadata_store).read_many(range(self._container_count))
        return keeps_leaving_store(self.ledgers.own, (stored.log for stored in logs.values()), leases)

    def _is_isolated(self) -> bool:
        """Whether this store has logs, or recovers some, and reaches none of their replicas in other stores."""
        others = {replica for each in self.ledgers.owned.values() for replica in _replicas(each)} - {self.ledgers.own}
        return bool(others) and all((self._silent_s(other) or 0.0) >= ISOLATED_AFTER_S for other in others)

    def _has_stalled_disk(self, owned: Collection[OwnedLog]) -> bool:
        """Whether the own disk stalls, and some log here has two other members, which continue without it.

        Without them another owner would wait for this disk, too. A store that owns nothing says it at once.
        """
        now_s = self._clock.monotonic_s()
        has_stalled = self._disk.has_stalled(self._journal.commit_under_way, now_s)
        is_stalled = has_stalled and (not owned or any(self._others_go_on(each) for each in owned))
        if is_stalled != self._is_stalled:
            age_s = self._disk.commit_age_s(now_s)
            _log.warning("event=disk_stall stalled=%s commit_s=%.1f", is_stalled, age_s)
        self._is_stalled = is_stalled
        return is_stalled

    def _others_go_on(self, owned: OwnedLog) -> bool:
        """Whether two other members write what they get, or answer while this store recovers the log."""
        others = [replica for replica in _replicas(owned) if replica != self.ledgers.own]
        if owned.writer is None:
            silent_s = [self._silent_s(other) for other in others]
            return sum(each is not None and each < ISOLATED_AFTER_S for each in silent_s) >= COPIES_MIN
        states = owned.writer.member_states()
        return sum(states.get(other) is MemberState.STREAMING for other in others) >= COPIES_MIN

    async def _drop_garbage(self, sessions: ReplicaSessions) -> Rest:
        await sessions.drop_unneeded(ContainerLogRecords(self._metadata_store))
        return Rest.fixed(GARBAGE_EVERY_S)

    def _garbage_stays(self, error: Exception, _retry_s: float) -> bool:
        _log.warning("event=replica_garbage_stays error=%r", error)
        return True

    def _plan(self, container: int) -> LogPlan:
        owned = self.ledgers.owned.get(container)
        log = None if owned is None else owned.log
        return self.peers.plan(container, self.ledgers.own, () if log is None else log.members)

    def _silent_s(self, replica: ReplicaId) -> float | None:
        """None if no log of this store has a copy there."""
        if self._links is None or replica == self.ledgers.own:
            return 0.0
        return self._links.silent_s(replica)


def _replicas(owned: OwnedLog) -> tuple[ReplicaId, ...]:
    """Those that hold a log, or are asked for it while it is recovered."""
    machine = owned.machine
    return machine.replicas if isinstance(machine, LogRecovery) else machine.log.members

"""What a store knows of the other stores: their leases, read about once a second.

From the leases follow the addresses of replicas and the placement of logs. A store that is silent on its link, and that
has not renewed its lease meanwhile, has ended: this store ends the lease and has the containers assigned again, so that
no client waits until the lease runs out. If the suspicion is wrong, the other store registers again, and what it had
claimed is fenced. Nothing is lost in either case.

The leases are read each second, although silence alone could prompt it. The time without a change is counted from the
first look at a version. If it began with the silence, each failover would take up to 2.5 s longer. The price is one
query each second: 2.6 million a month for each process, less than a dollar.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from headrace.controller.ticks.assign_containers import assign_containers
from headrace.metadata.cluster_records import ClusterRecords, StoredLease, write_lease
from headrace.model.cluster import REPLICA_PROTOCOL, StoreLease, has_ended_silently, lost
from headrace.model.container_logs import COPIES, ReplicaId
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.replica_placement import (
    Placement,
    ReplicaAddress,
    address_of,
    first_members,
    lease_of,
    place_replicas,
    replica_of,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import WriteConflictError
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan
from headrace.segmentstore.periodic_task import PeriodicTask, Rest

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0


class PeerStores:
    """`silent_s` says for how long a replica is silent, None without a link to it.

    `on_ended` is called when containers were assigned again.
    """

    def __init__(
        self,
        records: ClusterRecords,
        clock: Clock,
        container_count: int,
        silent_s: Callable[[ReplicaId], float | None],
        on_ended: Callable[[], Awaitable[None]],
    ) -> None:
        self._records = records
        self._clock = clock
        self._container_count = container_count
        self._silent_s = silent_s
        self._on_ended = on_ended
        self._leases: Sequence[StoreLease] = ()
        self._plans: dict[tuple[int, tuple[ReplicaId, ...]], LogPlan] = {}  # of these leases
        self._named: set[ReplicaId] = set()  # members that plans were asked for, since the last look began
        self._looked_for: set[ReplicaId] = set()  # members that had been named when the reading of these leases began
        self._away: set[str] | None = None  # stores that give their containers away; None before the first look
        self._seen: dict[str, tuple[int, float]] = {}  # version by store, and when it was first seen
        self._looks = PeriodicTask(self._look_and_rest, self._look_failed, retry_first_s=LOOK_EVERY_S)

    async def start(self) -> None:
        """Read the leases, then read them again about every second. Raises as `ClusterRecords.leases` does."""
        await self.look()
        self._looks.start(Rest.fixed(LOOK_EVERY_S))

    async def stop(self) -> None:
        await self._looks.stop()

    def address_of(self, replica: ReplicaId) -> ReplicaAddress | None:
        """Where a replica is reached; None if no store has it.

        Raises:
            UnavailableError: its store and this one have no common version of the protocol.
        """
        lease = lease_of(replica, self._leases)
        if lease is not None and lease.replica_protocol.shared(REPLICA_PROTOCOL) is None:
            raise UnavailableError(
                f"store {lease.store_id} speaks {lease.replica_protocol} of the protocol between replicas, this store "
                f"{REPLICA_PROTOCOL}: update the older one"
            )
        return address_of(replica, self._leases)

    def plan(self, container: int, own: ReplicaId, members: Sequence[ReplicaId]) -> LogPlan:
        """Who is to hold the log of a container, whose members these are now.

        A member without a lease counts as destroyed only if the leases were read after its log had named it: its store
        may have registered since they were read.
        """
        self._named.update(members)
        if not self._leases:
            return LogPlan((own,), COPIES, Placement())
        key = container, tuple(members)
        if key not in self._plans:
            wanted = first_members(container, own, self._leases)
            placement = place_replicas(container, own, members, self._leases)
            new = {each for each in members if each not in self._looked_for and lease_of(each, self._leases) is None}
            self._plans[key] = LogPlan(wanted, COPIES, replace(placement, destroyed=placement.destroyed - new))
        return self._plans[key]

    async def look(self) -> None:
        """Read the leases, and end those of stores that have ended."""
        named, self._named = self._named, set()
        leases = await asyncio.to_thread(self._records.leases)
        self._looked_for = named
        self._leases, self._plans = [each.lease for each in leases], {}
        ended = self._ended(leases)
        away = {lease.store_id for lease in self._leases if not lease.keeps_containers}
        is_news = self._away is not None and bool(away - self._away)
        self._away = away | {stored.lease.store_id for stored in ended}
        if ended or is_news:
            await asyncio.to_thread(self._end, ended)
            await self._on_ended()

    def _ended(self, leases: Sequence[StoredLease]) -> list[StoredLease]:
        """Note which leases have changed; return those of stores that have ended without a notice."""
        now_s, seen = self._clock.monotonic_s(), self._seen
        self._seen = {}
        ended = []
        for stored in leases:
            store_id, replica = stored.lease.store_id, replica_of(stored.lease)
            version, since_s = seen.get(store_id, (stored.version, now_s))
            if version != stored.version:
                since_s = now_s
            self._seen[store_id] = stored.version, since_s
            silent_s = 0.0 if replica is None else self._silent_s(replica)
            if has_ended_silently(stored.lease, silent_s, now_s - since_s):
                ended.append(stored)
        return ended

    def _end(self, ended: Sequence[StoredLease]) -> None:
        """End these leases, and assign the containers of stores that give them away.

        The store that has ended a lease, or that leaves, does so too. Only then does this one learn of the new map
        before its next heartbeat.
        """
        for stored in ended:
            try:
                self._records.store.write(write_lease(lost(stored.lease, self._clock.now_ms()), stored.version))
                _log.warning("event=silent_store_ended store=%s", stored.lease.store_id)
            except WriteConflictError:
                continue  # it has renewed its lease, or another store was faster
        assign_containers(self._records, self._container_count, self._clock.now_ms())

    async def _look_and_rest(self) -> Rest:
        await self.look()
        return Rest.fixed(LOOK_EVERY_S)

    def _look_failed(self, error: Exception, _retry_s: float) -> bool:
        if isinstance(error, HeadraceError):
            _log.warning("event=leases_not_read error=%r", error.message)
        else:
            _log.exception("event=looking_at_stores_failed")
        return True

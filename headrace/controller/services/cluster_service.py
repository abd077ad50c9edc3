"""The cluster for operators: its stores and containers, and the logs of containers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from headrace.api.cluster import (
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    ContainerView,
    CopiesChanged,
    EpochsRaised,
    StoreView,
)
from headrace.metadata.cluster_records import (
    ClusterRecords,
    ContainerState,
    StoredLease,
    check_lease,
    check_snapshot,
    write_claim,
)
from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome, StoredLog
from headrace.model.cluster import container_status
from headrace.model.container_logs import COPIES, NO_COPIES, LogState, ReplicaId, without_lost_members
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.replica_placement import may_be_removed
from headrace.ports.metadata_store import MetadataStore, Write, WriteConflictError

# Cluster status for operators: the stores with their leases, and the assigned and actual store of each container.


class ClusterService:
    """Read-only. Every method raises ThrottledError or UnavailableError if the metadata store does not answer."""

    def __init__(self, store: MetadataStore, container_count: int) -> None:
        self._records = ClusterRecords(store)
        self._container_count = container_count

    def cluster(self) -> ClusterView:
        """The stores, their leases and their containers; costs one query and one read."""
        stored, leases = self._records.container_map(), self._records.leases()
        stores = tuple(StoreView.of(each.lease, stored.map.containers_of(each.lease.store_id)) for each in leases)
        return ClusterView(stored.version, self._container_count, stores)

    def containers(self) -> ContainerMapView:
        """The status of each container; costs one query and two reads, and a read more per 50 containers beyond 50."""
        stored = self._records.container_map()
        leases = {each.lease.store_id: each.lease for each in self._records.leases()}
        views = tuple(
            ContainerView.of(
                state.container,
                stored.map.stores.get(state.container),
                container_status(state.container, state.hold, stored.map, leases),
                state.claim,
                state.epoch,
            )
            for state in self._records.containers(range(self._container_count))
        )
        return ContainerMapView(stored.version, views)


# The logs of containers for operators: their members, and the decisions that no process makes by itself.

CLAIM_WRITES_PER_REQUEST: Final = 500
"""A request must end within the time of its function; a claim is raised by one with each write."""

EPOCH_JUMP_MAX: Final = 100_000
"""A larger difference between an epoch and the wanted one is a mistake."""


class ClusterLogService:
    """Every method raises ThrottledError or UnavailableError if the metadata store does not answer."""

    def __init__(self, store: MetadataStore, container_count: int) -> None:
        self._records = ClusterRecords(store)
        self._logs = ContainerLogRecords(store)
        self._container_count = container_count

    def logs(self) -> ContainerLogsView:
        """The log of each container; costs two queries."""
        logs, leases = self._logs.all(), [each.lease for each in self._records.leases()]
        none = StoredLog(None, 0)
        return ContainerLogsView(
            tuple(
                ContainerLogView.of(container, *logs.get(container, none), leases)
                for container in range(self._container_count)
            )
        )

    def accept_loss(self, container: int, lost: Collection[ReplicaId], version: int) -> ContainerLogView:
        """Take lost members out of the log of this record version; costs a read, a query and a transaction.

        The next recovery takes the longest copy that is left. Without one the log is LOST, and the container is
        restored from the newest snapshot. Acknowledged entries may be missing afterwards.

        Raises:
            NotFoundError: there is no such container, or it has no log.
            InvalidRequestError: no replica is named, or one that is not a member.
            IllegalStateError: the store of a replica may still acknowledge, or a recovery needs none of these members.
            ConflictError: the record or a store's lease has changed.
        """
        stored = self._existing(container)
        log = stored.log
        if log is None or stored.version != version:
            raise ConflictError(f"the log of container {container} has changed: look at it again")
        strange = [each.hex() for each in lost if each not in log.members]
        if strange or not lost:
            raise InvalidRequestError(f"name lost members of the log of container {container}, not {strange}")
        leases = self._records.leases()
        checks = [check for each in lost for check in _checks_of_lost(each, leases)]
        after = without_lost_members(log, lost)
        _check_written(self._logs.replace_unowned(container, after, version, checks), container)
        return ContainerLogView.of(container, after, version + 1, [each.lease for each in leases])

    def set_copies(self, copies: int) -> CopiesChanged:
        """Note another number of copies in the records of all logs that are not open; one query, a write for each.

        Open logs are extended from one copy to three by their owners. Reducing them is refused: the copy that stays
        could lack entries. Logs whose entries are objects in S3 have no copies, and stay as they are.

        Raises:
            InvalidRequestError: `copies` is neither 1 nor 3.
            IllegalStateError: a log of three copies is open. Nothing was written.
            ConflictError: a record has changed. Other records were written: repeat the request.
        """
        if copies not in (1, COPIES):
            raise InvalidRequestError(f"a log has 1 or {COPIES} copies, not {copies}")
        others = {
            container: (log, version)
            for container, (log, version) in sorted(self._logs.all().items())
            if log is not None and log.copies not in (copies, NO_COPIES)
        }
        is_open = tuple(container for container, (log, _) in others.items() if log.state is LogState.OPEN)
        if is_open and copies < COPIES:
            raise IllegalStateError(
                f"the logs of containers {_some(is_open)} are open: stop all segment stores cleanly, then repeat this"
            )
        changed = tuple(container for container in others if container not in is_open)
        for container in changed:
            log, version = others[container]
            _check_written(self._logs.replace_unowned(container, replace(log, copies=copies), version), container)
        return CopiesChanged(copies, changed, is_open)

    def raise_epochs(self, above: int) -> EpochsRaised:
        """Raise the epoch of each container to more than `above`; needed after the metadata table was restored.

        Stores remember the highest epoch that they promised to obey, and refuse owners with lower ones. A claim grows
        by one with each write, so a request may leave containers for the next one. Running owners are fenced, and claim
        their containers again.

        Raises:
            InvalidRequestError: `above` is negative, or much higher than an epoch.
        """
        behind = [
            state
            for state in self._records.containers(range(self._container_count))
            if state.epoch is not None and state.epoch <= above
        ]
        if above < 0 or any(above - (state.epoch or 0) > EPOCH_JUMP_MAX for state in behind):
            raise InvalidRequestError(
                f"{above} is not an epoch that a store has named: epochs are raised by at most {EPOCH_JUMP_MAX}"
            )
        left = CLAIM_WRITES_PER_REQUEST
        raised: list[int] = []
        remaining: list[int] = []
        for state in behind:
            written = self._raise_epoch(state, above, left)
            left -= written
            is_done = state.epoch is not None and state.epoch + written > above
            (raised if is_done else remaining).append(state.container)
        return EpochsRaised(tuple(raised), tuple(remaining))

    def _raise_epoch(self, state: ContainerState, above: int, writes_max: int) -> int:
        """Write the claim again and again; returns how many writes succeeded. Ends when another process writes it."""
        if state.claim is None or state.epoch is None:
            return 0
        claim, checks = state.claim, []
        if state.hold is None:
            # The clean snapshot names the epoch of the present claim, and must count for later ones, too.
            claim, checks = replace(claim, from_clean=True), [check_snapshot(state)]
        wanted = min(above + 1 - state.epoch, writes_max)
        for written in range(wanted):
            try:
                self._records.store.write(write_claim(state.container, claim, state.epoch + written), *checks)
            except WriteConflictError:
                return written
        return wanted

    def _existing(self, container: int) -> StoredLog:
        if not 0 <= container < self._container_count:
            raise NotFoundError(
                f"there is no container {container}: they have numbers below {self._container_count}", code="no_log"
            )
        stored = self._logs.read(container)
        if stored.log is None:
            raise NotFoundError(f"container {container} has no log", code="no_log")
        return stored


def _checks_of_lost(replica: ReplicaId, leases: Sequence[StoredLease]) -> list[Write]:
    """A check that the store of a lost replica has not come back; raises IllegalStateError if it may be there."""
    stored = next((each for each in leases if each.lease.replica_id == replica.hex()), None)
    if stored is None:
        return []
    lease = stored.lease
    if not may_be_removed(lease):
        why = f"ECS has not reported that task {lease.task} has stopped" if lease.has_ended else "its lease is valid"
        raise IllegalStateError(
            f"replica {replica.hex()} is on store {lease.store_id}, which may run: {why}. Stop the store first"
        )
    return [check_lease(lease.store_id, stored)]


def _check_written(outcome: LogWriteOutcome, container: int) -> None:
    if outcome is LogWriteOutcome.UNKNOWN:
        raise UnavailableError(f"the metadata store does not answer: look whether the log of {container} has changed")
    if outcome is not LogWriteOutcome.WRITTEN:
        raise ConflictError(f"the log of container {container} or a store has changed: look at it again")


def _some(containers: Sequence[int]) -> str:
    more = ", ..." if len(containers) > 10 else ""
    return ", ".join(map(str, containers[:10])) + more

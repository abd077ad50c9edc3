"""Ends the membership of a store process whose volume has failed, if no log needs its copy.

The journals of several stores can fail at the same time: by a defect that all members of a log meet with the same
entry, or because all volumes are full. Each store that ends loses its volume. So a store leaves only while other
members that serve have all entries of its logs, and they see that it has left before they leave.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords, StoredLease, check_lease, write_lease
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.cluster import left
from headrace.model.container_logs import ContainerLog, ReplicaId
from headrace.model.errors import HeadraceError
from headrace.model.replica_placement import replica_of
from headrace.model.replication_health import logs_lost_without, serving_zones
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX, MetadataStore, Write

_log = logging.getLogger(__name__)

CHECKED_STORES_MAX: Final = WRITES_PER_TRANSACTION_MAX - 1
"""In addition to the write of the own lease. More stores than that do not fail within the same milliseconds."""


def leave_cluster(metadata_store: MetadataStore, store_id: str, container_count: int, now_ms: int) -> bool:
    """Mark the lease of a process as that of a store that has stopped. Returns whether its volume may be deleted.

    False if a log needs the copy on the volume, if another store of its logs changes its lease meanwhile, or if the
    metadata store does not answer: the caller restarts the process, and asks again when it has failed again. Never
    raises HeadraceError.
    """
    try:
        leases = ClusterRecords(metadata_store).leases()
        stored = ContainerLogRecords(metadata_store).read_many(range(container_count))
        own = next((each for each in leases if each.lease.store_id == store_id), None)
        replica = None if own is None else replica_of(own.lease)
        if own is None or replica is None:
            return True  # a store registers its replica before any log can name it
        logs = {container: each.log for container, each in stored.items()}
        needing = logs_lost_without(replica, logs, serving_zones((each.lease for each in leases), now_ms))
        if needing:
            _log.critical("event=volume_still_needed store=%s logs=%d first=%d", store_id, len(needing), needing[0])
            return False
        after = own.lease if own.lease.has_ended else left(own.lease, now_ms)
        metadata_store.write(write_lease(after, own.version), *_checks_of_others(replica, logs, leases))
    except HeadraceError as error:
        _log.warning("event=leaving_not_announced store=%s error=%r", store_id, error)
        return False
    _log.info("event=left store=%s", store_id)
    return True


def _checks_of_others(
    replica: ReplicaId, logs: Mapping[int, ContainerLog | None], leases: Sequence[StoredLease]
) -> list[Write]:
    """Checks that the stores with other copies of the logs of a replica are still as they were read."""
    logs_here = [log for log in logs.values() if log is not None and replica in log.members]
    others = {member for log in logs_here for member in log.members if member != replica}
    checks = [check_lease(each.lease.store_id, each) for each in leases if replica_of(each.lease) in others]
    return checks[:CHECKED_STORES_MAX]

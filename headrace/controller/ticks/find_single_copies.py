"""The check for logs of which one copy is left. The tick makes it while a store says that a log lacks copies."""

from __future__ import annotations

from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.replication_health import logs_with_one_copy, serving_zones
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore


def find_single_copies(store: MetadataStore, clock: Clock, container_count: int) -> tuple[int, ...]:
    """The containers whose owner cannot acknowledge, because fewer than two members of their log serve.

    Costs a query, and a batch read for 100 containers.

    Raises:
        CorruptError: a log record cannot be read.
        ThrottledError, UnavailableError: the metadata store does not answer; the next tick checks again.
    """
    zones = serving_zones((stored.lease for stored in ClusterRecords(store).leases()), clock.now_ms())
    logs = {each: stored.log for each, stored in ContainerLogRecords(store).read_many(range(container_count)).items()}
    return logs_with_one_copy(logs, zones)

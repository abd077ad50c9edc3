"""Cluster status for operators: the stores with their leases, and the assigned and actual store of each container."""

from __future__ import annotations

from headrace.api.cluster import ClusterView, ContainerMapView, ContainerView, StoreView
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import container_status
from headrace.ports.metadata_store import MetadataStore


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
        found = tuple(
            ContainerView.of(
                state.container,
                stored.map.stores.get(state.container),
                container_status(state.container, state.hold, stored.map, leases),
                state.claim,
                state.epoch,
            )
            for state in self._records.containers(range(self._container_count))
        )
        return ContainerMapView(stored.version, found)

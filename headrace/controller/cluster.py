"""What operators ask about the cluster: its stores with their leases, and where each container is and belongs."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import ContainerStanding, StoreLease, container_standing
from headrace.model.containers import ContainerClaim
from headrace.ports.metadata_store import MetadataStore


@dataclass(frozen=True, slots=True)
class StoreInCluster:
    """A store process and the containers that the map gives it."""

    lease: StoreLease
    containers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """All stores by id. `map_version` is None before the first map."""

    map_version: int | None
    container_count: int
    stores: tuple[StoreInCluster, ...]


@dataclass(frozen=True, slots=True)
class ContainerInCluster:
    """`store_id` is what the map says; `claim` and `epoch` are of the store that clients are sent to."""

    container: int
    store_id: str | None
    standing: ContainerStanding
    claim: ContainerClaim | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class ContainersInCluster:
    """Every container, in their order."""

    map_version: int | None
    containers: tuple[ContainerInCluster, ...]


class ClusterService:
    """Reads only. Every method raises ThrottledError or UnavailableError when the metadata store does not answer."""

    def __init__(self, store: MetadataStore, container_count: int) -> None:
        self._records = ClusterRecords(store)
        self._container_count = container_count

    def cluster(self) -> Cluster:
        """One query and one read."""
        stored, leases = self._records.container_map(), self._records.leases()
        stores = tuple(StoreInCluster(each.lease, stored.map.containers_of(each.lease.store_id)) for each in leases)
        return Cluster(stored.version, self._container_count, stores)

    def containers(self) -> ContainersInCluster:
        """One query and two reads (one more for each 50 containers beyond 50)."""
        stored = self._records.container_map()
        leases = {each.lease.store_id: each.lease for each in self._records.leases()}
        found = tuple(
            ContainerInCluster(
                state.container,
                stored.map.stores.get(state.container),
                container_standing(state.container, state.hold, stored.map, leases),
                state.claim,
                state.epoch,
            )
            for state in self._records.containers(range(self._container_count))
        )
        return ContainersInCluster(stored.version, found)

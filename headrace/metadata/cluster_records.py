"""The records of the cluster: leases of stores, the container map, and claims and snapshot pointers of containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.metadata.container_claim import claim_sort, decode_claim
from headrace.metadata.container_map import (
    MAP_KEY,
    StoredMap,
    stored_map,
)
from headrace.metadata.snapshot_pointer import decode_snapshot_pointer, snapshot_sort
from headrace.metadata.store_lease import (
    STORES_FIRST,
    STORES_LAST,
    StoredLease,
    decode_store_lease,
    lease_key,
)
from headrace.model.cluster import STORES_MAX, ContainerHold
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, SnapshotPointer
from headrace.model.errors import IllegalStateError
from headrace.ports.metadata_store import (
    READS_PER_BATCH_MAX,
    Check,
    Key,
    MetadataStore,
    Record,
    Write,
)


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The claim of a container, its epoch, and the store whose log is needed to recover it (`hold`).

    `claim` and `epoch` are None before the first claim. `pointer_version` is the version of the record with the
    snapshot pointer.
    """

    container: int
    claim: ContainerClaim | None
    epoch: int | None
    pointer: SnapshotPointer | None
    hold: ContainerHold | None
    pointer_version: int | None = None


class ClusterRecords:
    """Reads the records of the cluster, several containers in one batch."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def leases(self) -> list[StoredLease]:
        """The leases of all stores, ordered by store id; one query.

        Raises:
            IllegalStateError: there are more than STORES_MAX.
        """
        page = self.store.query(CLUSTER_PARTITION, first=STORES_FIRST, last=STORES_LAST, limit=STORES_MAX + 1)
        if len(page.records) > STORES_MAX:
            raise IllegalStateError(
                f"the cluster has more than {STORES_MAX} segment store processes: run fewer and larger ones"
            )
        return [StoredLease(decode_store_lease(record.body), record.version) for record in page.records]

    def lease(self, store_id: str) -> StoredLease | None:
        """One read."""
        record = self.store.get(lease_key(store_id))
        return None if record is None else StoredLease(decode_store_lease(record.body), record.version)

    def container_map(self) -> StoredMap:
        """One read."""
        return stored_map(self.store.get(MAP_KEY))

    def map_and_claims(self, containers: Sequence[int]) -> tuple[StoredMap, dict[int, int | None]]:
        """The map, and the epoch of each container's claim, None without one; one batch read for 99 containers."""
        keys = [MAP_KEY, *(Key(CLUSTER_PARTITION, claim_sort(each)) for each in containers)]
        records: list[Record | None] = []
        for first in range(0, len(keys), READS_PER_BATCH_MAX):
            records += self.store.get_many(keys[first : first + READS_PER_BATCH_MAX])
        epochs = [None if record is None else record.version for record in records[1:]]
        return stored_map(records[0]), dict(zip(containers, epochs, strict=True))

    def containers(self, containers: Sequence[int]) -> list[ContainerState]:
        """One batch read for 50 containers."""
        found = []
        step = READS_PER_BATCH_MAX // 2
        for first in range(0, len(containers), step):
            batch = containers[first : first + step]
            keys = [Key(CLUSTER_PARTITION, sort(each)) for each in batch for sort in (claim_sort, snapshot_sort)]
            records = self.store.get_many(keys)
            found += [_state(each, *records[2 * index : 2 * index + 2]) for index, each in enumerate(batch)]
        return found


def check_snapshot(state: ContainerState) -> Write:
    """A check that the snapshot pointer of a container is still the one that was read, or still does not exist."""
    return Check(Key(CLUSTER_PARTITION, snapshot_sort(state.container)), state.pointer_version)


def _state(container: int, claim_record: Record | None, pointer_record: Record | None) -> ContainerState:
    """The state of a container.

    After a clean shutdown no store's log is needed, because the newest snapshot has everything that the log has. This
    stays true for later claims of the container, until a store is about to serve it.
    """
    pointer = None if pointer_record is None else decode_snapshot_pointer(pointer_record.body)
    version = None if pointer_record is None else pointer_record.version
    if claim_record is None:
        return ContainerState(container, None, None, pointer, None, version)
    claim = decode_claim(claim_record.body)
    clean = pointer is not None and pointer.clean and (claim.from_clean or pointer.epoch == claim_record.version)
    hold = None if clean else ContainerHold(claim.store_id, claim_record.version, claim.log_in_s3)
    return ContainerState(container, claim, claim_record.version, pointer, hold, version)

"""Claims of segment containers, and pointers to the snapshots of their metadata.

The claim of a container is one metadata record that names the owner and its address. Its record version is the
container's epoch. A store that takes the container over replaces the record, and every later write of the old owner
that checks the version fails. A store without the container's log starts from the snapshot in tier 2.
"""

from __future__ import annotations

from dataclasses import dataclass

CLUSTER_PARTITION = "cluster"

FIRST_EPOCH = 0
"""The epoch of the first claim of a container: no store has served it before."""


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """The owner of a container. Clients connect to `host` and `port`.

    `zone` is the availability zone id, "local" on a laptop. `from_clean`: tier 2 had all data at the time of the claim,
    and the owner removes the mark `clean` from the snapshot before it serves. While that mark exists, the owner's log
    is not needed. `log_in_s3`: the owner's log consists of objects in S3, so its disk is not needed.
    """

    store_id: str
    host: str
    port: int
    zone: str
    from_clean: bool = False
    log_in_s3: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotPointer:
    """The newest snapshot of a container in tier 2: `length` bytes in the object `object_name`, with their CRC-32C.

    `epoch` is the epoch of the owner that wrote it. `clean`: the owner wrote it last, when tier 2 had all data. The
    next owner removes this mark before it serves.
    """

    object_name: str
    length: int
    checksum: int
    epoch: int
    clean: bool


def containers_of_store(store_index: int, store_count: int, container_count: int) -> tuple[int, ...]:
    """The containers of the store with this index: every `store_count`-th, starting at the index."""
    return tuple(range(store_index, container_count, store_count))

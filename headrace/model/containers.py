"""Claims of segment containers, and pointers to the snapshots of their metadata.

The claim of a container is one metadata record that names the owner and its address. Its record version is the
container's epoch. A store that takes the container over replaces the record, and every later write of the old owner
that checks the version fails. A store without the container's log starts from the snapshot in tier 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.record_fields import record_field

CLUSTER_PARTITION = "cluster"

FIRST_EPOCH = 0
"""The epoch of the first claim of a container: no store has served it before."""


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """The owner of a container. Clients connect to `host` and `port`.

    `zone` is the availability zone id, "local" on a laptop. `from_clean`: tier 2 had all data at the time of the claim,
    and the owner removes the mark `clean` from the snapshot before it serves. While that mark exists, the owner's log
    is not needed.
    """

    store_id: str
    host: str
    port: int
    zone: str
    from_clean: bool = False


def claim_sort(container: int) -> str:
    """The sort key of a container's claim in CLUSTER_PARTITION."""
    return f"container/{container:04d}"


def claim_body(claim: ContainerClaim) -> dict[str, Any]:
    body: dict[str, Any] = {"store": claim.store_id, "host": claim.host, "port": claim.port, "zone": claim.zone}
    return body | {"from_clean": True} if claim.from_clean else body


def container_claim(body: Mapping[str, Any]) -> ContainerClaim:
    """The claim stored in a record body; raises CorruptError if the body is not a claim."""
    store_id, host, zone = (record_field(body, name, str) for name in ("store", "host", "zone"))
    from_clean = "from_clean" in body and record_field(body, "from_clean", bool)
    return ContainerClaim(store_id, host, record_field(body, "port", int), zone, from_clean)


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


def snapshot_sort(container: int) -> str:
    """The sort key of a container's snapshot pointer in CLUSTER_PARTITION."""
    return f"snapshot/{container:04d}"


def snapshot_body(pointer: SnapshotPointer) -> dict[str, Any]:
    return {
        "object": pointer.object_name,
        "length": pointer.length,
        "crc32c": pointer.checksum,
        "epoch": pointer.epoch,
        "clean": pointer.clean,
    }


def snapshot_pointer(body: Mapping[str, Any]) -> SnapshotPointer:
    """The pointer stored in a record body; raises CorruptError if the body is not a pointer."""
    length, checksum, epoch = (record_field(body, name, int) for name in ("length", "crc32c", "epoch"))
    return SnapshotPointer(
        record_field(body, "object", str), length, checksum, epoch, record_field(body, "clean", bool)
    )


def containers_of_store(store_index: int, store_count: int, container_count: int) -> tuple[int, ...]:
    """The containers of the store with this index: every `store_count`-th, starting at the index."""
    return tuple(range(store_index, container_count, store_count))

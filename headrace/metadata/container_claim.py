"""The claim of a container: the record whose version is the container's epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.record_fields import record_field
from headrace.ports.metadata_store import READS_PER_BATCH_MAX, Check, Create, Key, MetadataStore, Replace


def claim_sort(container: int) -> str:
    """The sort key of a container's claim in CLUSTER_PARTITION."""
    return f"container/{container:04d}"


def claim_key(container: int) -> Key:
    return Key(CLUSTER_PARTITION, claim_sort(container))


def claim_body(claim: ContainerClaim) -> dict[str, Any]:
    body: dict[str, Any] = {"store": claim.store_id, "host": claim.host, "port": claim.port, "zone": claim.zone}
    marks = {"from_clean": claim.from_clean, "log_in_s3": claim.log_in_s3}
    return body | {name: True for name, is_set in marks.items() if is_set}


def decode_claim(body: Mapping[str, Any]) -> ContainerClaim:
    """The claim stored in a record body; raises CorruptError if the body is not a claim."""
    store_id, host, zone = (record_field(body, name, str) for name in ("store", "host", "zone"))
    from_clean, log_in_s3 = (name in body and record_field(body, name, bool) for name in ("from_clean", "log_in_s3"))
    return ContainerClaim(store_id, host, record_field(body, "port", int), zone, from_clean, log_in_s3)


def find_claim(store: MetadataStore, container: int) -> tuple[ContainerClaim, int] | None:
    """The claim and the epoch of the container; one read. None if no store has claimed the container yet."""
    record = store.get(claim_key(container))
    return None if record is None else (decode_claim(record.body), record.version)


def find_claims(store: MetadataStore, containers: Iterable[int]) -> dict[int, tuple[ContainerClaim, int]]:
    """The claim and the epoch of each of the containers that a store has claimed; one read for each hundred of them."""
    wanted = sorted(set(containers))
    found: dict[int, tuple[ContainerClaim, int]] = {}
    for start in range(0, len(wanted), READS_PER_BATCH_MAX):
        batch = wanted[start : start + READS_PER_BATCH_MAX]
        for container, record in zip(batch, store.get_many([claim_key(one) for one in batch]), strict=True):
            if record is not None:
                found[container] = decode_claim(record.body), record.version
    return found


def write_claim(container: int, claim: ContainerClaim, epoch: int | None) -> Create | Replace:
    """The write that replaces the claim of this epoch, or creates the first claim if `epoch` is None."""
    key, body = claim_key(container), claim_body(claim)
    return Create(key, body) if epoch is None else Replace(key, body, epoch)


def check_claim(container: int, epoch: int) -> Check:
    """A check that the container has had no other owner since its claim of this epoch."""
    return Check(claim_key(container), epoch)

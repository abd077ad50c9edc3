"""The lease of a tick: one record per kind of periodic work and bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, versioned
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Replace

BUCKET_LEASES_PARTITION = "bucket-leases"


@dataclass(frozen=True, slots=True)
class BucketLease:
    """`until_ms` since the Unix epoch: no other tick works before; 0 when the work is done.

    `position` is where the next tick goes on in the index, empty for its beginning. `crashes` counts the ticks in a row
    that did not give their lease back.
    """

    until_ms: int
    position: str = ""
    crashes: int = 0


def bucket_lease_sort(kind: str, bucket: int) -> str:
    return f"{kind}/{bucket:04d}"


def bucket_lease_key(kind: str, bucket: int) -> Key:
    return Key(BUCKET_LEASES_PARTITION, bucket_lease_sort(kind, bucket))


def bucket_lease_body(lease: BucketLease) -> dict[str, Any]:
    more = {"position": lease.position} if lease.position else {}
    return versioned(until=lease.until_ms, **more, **({"crashes": lease.crashes} if lease.crashes else {}))


def decode_bucket_lease(body: Body) -> BucketLease:
    return decoded(
        "bucket lease",
        body,
        lambda fields: BucketLease(
            int(fields["until"]), str(fields.get("position", "")), int(fields.get("crashes", 0))
        ),
    )


def find_bucket_lease(store: MetadataStore, kind: str, bucket: int) -> tuple[BucketLease, int | None]:
    """The lease and the version of its record; a lease that is over and None before the first one. One read."""
    record = store.get(bucket_lease_key(kind, bucket))
    return (BucketLease(0), None) if record is None else (decode_bucket_lease(record.body), record.version)


def write_bucket_lease(kind: str, bucket: int, lease: BucketLease, version: int | None) -> Create | Replace:
    """The write that replaces the lease of this version, or creates the first lease if `version` is None."""
    key, body = bucket_lease_key(kind, bucket), bucket_lease_body(lease)
    return Create(key, body) if version is None else Replace(key, body, version)

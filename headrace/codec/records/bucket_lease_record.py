"""Who works on a bucket just now: the lease of a tick, one record per kind of work and bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned

BUCKET_LEASES_PARTITION = "bucket-leases"


def bucket_lease_sort(kind: str, bucket: int) -> str:
    return f"{kind}/{bucket:04d}"


@dataclass(frozen=True, slots=True)
class BucketLease:
    """`until_ms` since the Unix epoch: no other tick works before; 0 when the work is done.

    `position` is where the next tick goes on in the index, empty for its beginning. `crashes` counts the ticks in a row
    that did not give their lease back.
    """

    until_ms: int
    position: str = ""
    crashes: int = 0


def bucket_lease_body(lease: BucketLease) -> dict[str, Any]:
    more = {"position": lease.position} if lease.position else {}
    return versioned(until=lease.until_ms, **more, **({"crashes": lease.crashes} if lease.crashes else {}))


def bucket_lease_of_body(body: Body) -> BucketLease:
    return decoded(
        "bucket lease",
        body,
        lambda fields: BucketLease(
            int(fields["until"]), str(fields.get("position", "")), int(fields.get("crashes", 0))
        ),
    )

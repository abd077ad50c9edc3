"""Who works on a bucket just now: the lease of a tick, one record per kind of work and bucket."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned

BUCKET_LEASES_PARTITION = "bucket-leases"


def bucket_lease_sort(kind: str, bucket: int) -> str:
    return f"{kind}/{bucket:04d}"


def bucket_lease_body(until_ms: int) -> dict[str, Any]:
    """`until_ms` since the Unix epoch: nobody else works before; 0 when the work is done."""
    return versioned(until=until_ms)


def bucket_lease_of_body(body: Body) -> int:
    """Until when the lease runs, milliseconds since the Unix epoch."""
    return decoded("bucket lease", body, lambda fields: int(fields["until"]))

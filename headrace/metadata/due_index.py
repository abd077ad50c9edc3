"""The indexes of due work: their buckets, pages of their entries, and the leases of the ticks that work on them.

Entries of a page decode or are reported, and entries move to another time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace import topology
from headrace.metadata.record_layout import decoded, moved_to, versioned
from headrace.model.backoff import bucket_of_stream
from headrace.model.errors import CorruptError
from headrace.model.names import scoped_stream_name
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace, Write

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record of an index that does not decode, and why."""

    record: Record
    error: CorruptError


@dataclass(frozen=True, slots=True)
class IndexPage(Generic[D]):
    """Records of an index in order, with their values; `next_after` is the last sort key, None at the end."""

    entries: Sequence[tuple[Record, D]]
    undecodable: Sequence[Undecodable]
    next_after: str | None


def read_index(
    store: MetadataStore,
    partition: str,
    decode: Callable[[Body], D],
    *,
    after: str,
    last: str | None = None,
    limit: int,
) -> IndexPage[D]:
    """The records with sort keys above `after`, up to `last`; one query. `after` is empty for the beginning."""
    page = store.query(partition, first=f"{after}\0" if after else "", last=last, limit=limit)
    entries: list[tuple[Record, D]] = []
    undecodable: list[Undecodable] = []
    for record in page.records:
        try:
            entries.append((record, decode(record.body)))
        except CorruptError as error:
            undecodable.append(Undecodable(record, error))
    return IndexPage(entries, undecodable, page.next_after)


def move_back(record: Record, due_ms: int, body: Body | None = None) -> list[Write]:
    """The writes that make a record of an index by time due at `due_ms`, with another body or the same."""
    key = Key(record.key.partition, moved_to(record.key.sort, due_ms))
    return [Delete(record.key, record.version), Create(key, record.body if body is None else body)]


# The lease of a tick: one record per kind of periodic work and bucket.

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


# The bucket of a stream. Indexes of due work have one partition for each bucket.
#
# This is not in `record_layout`, because the number of buckets is part of the topology. Segment stores use
# `record_layout`, and their image must not change with the functions.


def bucket_of(scope: str, stream: str) -> int:
    """The bucket of a stream: 0 to `topology.BUCKET_COUNT` - 1."""
    return bucket_of_stream(scoped_stream_name(scope, stream), topology.BUCKET_COUNT)

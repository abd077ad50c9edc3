"""When a transaction is checked next: an index per bucket, sorted by time.

The time is a lower bound: a tick that finds an entry whose transaction has more time moves the entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.due_index import IndexPage, move_back, read_index
from headrace.metadata.record_layout import decoded, time_prefix, versioned
from headrace.metadata.stream_buckets import bucket_of
from headrace.model.transactions import transaction_text
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Record, Write


@dataclass(frozen=True, slots=True)
class DueEntry:
    """A transaction to be checked.

    `first_segment_number` tells the incarnation of the stream. After `failures` in a row the entry is at a later place,
    and `due_ms` is still when it was due at first.
    """

    due_ms: int
    scope: str
    stream: str
    transaction_id: int
    first_segment_number: int
    failures: int = 0


def due_partition(bucket: int) -> str:
    return f"transactions-due/{bucket:04d}"


def due_sort(entry: DueEntry) -> str:
    return f"{time_prefix(entry.due_ms)}/{entry.scope}/{entry.stream}/{transaction_text(entry.transaction_id)}"


def due_last(now_ms: int) -> str:
    """The upper bound of a query for what is due at `now_ms`."""
    return time_prefix(now_ms + 1)


def due_key(entry: DueEntry) -> Key:
    return Key(due_partition(bucket_of(entry.scope, entry.stream)), due_sort(entry))


def due_body(entry: DueEntry) -> dict[str, Any]:
    return versioned(
        due=entry.due_ms,
        scope=entry.scope,
        stream=entry.stream,
        transaction=transaction_text(entry.transaction_id),
        commit_set=None,  # release 0.1.0 had entries of commit sets
        first_number=entry.first_segment_number,
        **({"failures": entry.failures} if entry.failures else {}),
    )


def decode_due(body: Body) -> DueEntry:
    return decoded("due transaction", body, _due_entry)


def create_due(entry: DueEntry) -> Create:
    return Create(due_key(entry), due_body(entry))


def _due_entry(body: Body) -> DueEntry:
    if body["commit_set"] is not None:
        raise ValueError(f"it is of the commit set {body['commit_set']!r}, not of a transaction")
    return DueEntry(
        due_ms=int(body["due"]),
        scope=str(body["scope"]),
        stream=str(body["stream"]),
        transaction_id=int(body["transaction"], 16),
        first_segment_number=int(body["first_number"]),
        failures=int(body.get("failures", 0)),
    )


def read_due_entries(store: MetadataStore, bucket: int, now_ms: int, after: str, limit: int) -> IndexPage[DueEntry]:
    """The entries of a bucket that are due at `now_ms`; one query."""
    partition, last = due_partition(bucket), due_last(now_ms)
    return read_index(store, partition, decode_due, after=after, last=last, limit=limit)


def put_off_due(record: Record, entry: DueEntry, due_ms: int) -> list[Write]:
    """The writes that put an entry in the place of the one in `record`, at another place in the index."""
    return move_back(record, due_ms, due_body(entry))

"""The writer of commit sets, at its home stream: the last epoch that was committed, and the set that is not decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.commit_sets import CommitWriter, PendingSet, check_set_writer
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Record, Replace

_PREFIX = "commit-writer/"
_LAST = "commit-writer0"
"""The character after '/' is '0': what begins with the prefix sorts before this."""


@dataclass(frozen=True, slots=True)
class StoredWriter:
    """A writer as it was read, and the version of its record."""

    writer: CommitWriter
    version: int


def commit_writer_key(scope: str, home: str, writer: str) -> Key:
    return Key(transactions_partition(scope, home), f"{_PREFIX}{check_set_writer(writer)}")


def commit_writer_body(writer: CommitWriter) -> dict[str, Any]:
    pending = writer.pending
    return versioned(
        writer=writer.name,
        epoch=writer.epoch,
        set=writer.set_id,
        time=writer.time_ms,
        pending=None
        if pending is None
        else {
            "set": pending.set_id,
            "epoch": pending.epoch,
            "streams": list(pending.streams),
            "refused": pending.refused,
        },
    )


def decode_commit_writer(body: Body) -> CommitWriter:
    return decoded("commit writer", body, _commit_writer)


def stored_writer(record: Record | None) -> StoredWriter | None:
    return None if record is None else StoredWriter(decode_commit_writer(record.body), record.version)


def find_commit_writer(store: MetadataStore, scope: str, home: str, writer: str) -> StoredWriter | None:
    """One read."""
    return stored_writer(store.get(commit_writer_key(scope, home, writer)))


def read_commit_writers(
    store: MetadataStore, scope: str, home: str, after: str | None, limit: int
) -> tuple[list[CommitWriter], str | None]:
    """The writers whose home is this stream, after a sort key; and the next such key. One query."""
    first = _PREFIX if after is None else f"{after}\0"
    page = store.query(transactions_partition(scope, home), first=first, last=_LAST, limit=limit)
    return [decode_commit_writer(one.body) for one in page.records], page.next_after


def create_commit_writer(scope: str, home: str, writer: CommitWriter, version: int) -> Create:
    return Create(commit_writer_key(scope, home, writer.name), commit_writer_body(writer), version)


def replace_commit_writer(scope: str, home: str, stored: StoredWriter, after: CommitWriter) -> Replace:
    return Replace(commit_writer_key(scope, home, after.name), commit_writer_body(after), stored.version)


def _commit_writer(body: Body) -> CommitWriter:
    epoch, set_id, time_ms, pending = body["epoch"], body["set"], body["time"], body["pending"]
    return CommitWriter(
        name=str(body["writer"]),
        epoch=None if epoch is None else int(epoch),
        set_id=None if set_id is None else str(set_id),
        time_ms=None if time_ms is None else int(time_ms),
        pending=None if pending is None else _pending(pending),
    )


def _pending(fields: Body) -> PendingSet:
    streams = tuple(map(str, fields["streams"]))
    return PendingSet(str(fields["set"]), int(fields["epoch"]), streams, bool(fields["refused"]))

"""A commit set: the transactions that were committed under a key."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.transactions import CommitSet, transaction_text
from headrace.ports.metadata_store import Body, Create, Key, Record

_PREFIX = "commit-set/"


def commit_set_sort(key: str) -> str:
    return f"{_PREFIX}{key}"


def commit_set_key(scope: str, stream: str, key: str) -> Key:
    return Key(transactions_partition(scope, stream), commit_set_sort(key))


def commit_set_body(commit_set: CommitSet) -> dict[str, Any]:
    return versioned(
        key=commit_set.key,
        transactions=[transaction_text(one) for one in commit_set.transactions],
        marked=commit_set.marked_ms,
    )


def decode_commit_set(body: Body) -> CommitSet:
    return decoded("commit set", body, _commit_set)


def read_commit_set(record: Record | None) -> CommitSet | None:
    return None if record is None else decode_commit_set(record.body)


def create_commit_set(scope: str, stream: str, created: CommitSet) -> Create:
    return Create(commit_set_key(scope, stream, created.key), commit_set_body(created))


def _commit_set(body: Body) -> CommitSet:
    return CommitSet(str(body["key"]), tuple(int(one, 16) for one in body["transactions"]), int(body["marked"]))

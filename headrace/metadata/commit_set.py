"""A commit set under a key, as release 0.1.0 wrote it. It is only read, to be deleted when its time is over."""

from __future__ import annotations

from headrace.metadata.record_layout import decoded, transactions_partition
from headrace.model.transactions import CommitSet
from headrace.ports.metadata_store import Body, Key

_PREFIX = "commit-set/"


def commit_set_sort(key: str) -> str:
    return f"{_PREFIX}{key}"


def commit_set_key(scope: str, stream: str, key: str) -> Key:
    return Key(transactions_partition(scope, stream), commit_set_sort(key))


def decode_commit_set(body: Body) -> CommitSet:
    return decoded("commit set", body, _commit_set)


def _commit_set(body: Body) -> CommitSet:
    return CommitSet(str(body["key"]), tuple(int(one, 16) for one in body["transactions"]), int(body["marked"]))

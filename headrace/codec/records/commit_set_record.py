"""A commit set: what was committed under a key."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.transactions import CommitSet, transaction_text

_PREFIX = "commit-set/"


def commit_set_sort(key: str) -> str:
    return f"{_PREFIX}{key}"


def commit_set_body(commit_set: CommitSet) -> dict[str, Any]:
    return versioned(
        key=commit_set.key,
        transactions=[transaction_text(one) for one in commit_set.transactions],
        marked=commit_set.marked_ms,
    )


def commit_set_of_body(body: Body) -> CommitSet:
    return decoded("commit set", body, _commit_set)


def _commit_set(body: Body) -> CommitSet:
    return CommitSet(str(body["key"]), tuple(int(one, 16) for one in body["transactions"]), int(body["marked"]))

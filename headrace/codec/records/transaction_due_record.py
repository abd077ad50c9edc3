"""When a transaction is to be looked at next, or a commit set to be forgotten: per bucket, sorted by time.

The time is a lower bound: who finds an entry whose transaction has more time moves the entry on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.transactions import transaction_text

_TIME_DIGITS = 20


@dataclass(frozen=True, slots=True)
class DueEntry:
    """Either a transaction or, by its key, a commit set."""

    due_ms: int
    scope: str
    stream: str
    transaction_id: int | None = None
    commit_set: str | None = None


def due_partition(bucket: int) -> str:
    return f"transactions-due/{bucket:04d}"


def due_sort(entry: DueEntry) -> str:
    what = f"set/{entry.commit_set}" if entry.transaction_id is None else transaction_text(entry.transaction_id)
    return f"{entry.due_ms:0{_TIME_DIGITS}d}/{entry.scope}/{entry.stream}/{what}"


def due_last(now_ms: int) -> str:
    """The upper bound of a query for what is due at `now_ms`."""
    return f"{now_ms + 1:0{_TIME_DIGITS}d}"


def due_body(entry: DueEntry) -> dict[str, Any]:
    return versioned(
        due=entry.due_ms,
        scope=entry.scope,
        stream=entry.stream,
        transaction=None if entry.transaction_id is None else transaction_text(entry.transaction_id),
        commit_set=entry.commit_set,
    )


def due_of_body(body: Body) -> DueEntry:
    return decoded("due transaction", body, _due_entry)


def _due_entry(body: Body) -> DueEntry:
    identifier, key = body["transaction"], body["commit_set"]
    return DueEntry(
        due_ms=int(body["due"]),
        scope=str(body["scope"]),
        stream=str(body["stream"]),
        transaction_id=None if identifier is None else int(identifier, 16),
        commit_set=None if key is None else str(key),
    )

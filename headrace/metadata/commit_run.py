"""The running commit of a stream's transactions: an interrupted commit continues from this record."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.transactions import CommitRun, transaction_text
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore

RUN_SORT = "run"


def commit_run_key(scope: str, stream: str) -> Key:
    return Key(transactions_partition(scope, stream), RUN_SORT)


def commit_run_body(run: CommitRun) -> dict[str, Any]:
    # Most runs have none: their records stay as earlier versions write them.
    incomplete = {"incomplete": [transaction_text(one) for one in run.incomplete]} if run.incomplete else {}
    return versioned(
        transactions=[transaction_text(one) for one in run.transactions],
        reference_epoch=run.reference_epoch,
        active_epoch=run.active_epoch,
        rolls=run.rolls,
        started=run.started_ms,
        **incomplete,
    )


def decode_commit_run(body: Body) -> CommitRun:
    return decoded("commit run", body, _commit_run)


def create_run(scope: str, stream: str, run: CommitRun) -> Create:
    return Create(commit_run_key(scope, stream), commit_run_body(run))


def delete_run(scope: str, stream: str) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return Delete(commit_run_key(scope, stream), None)


def find_commit_run(store: MetadataStore, scope: str, stream: str) -> CommitRun | None:
    """One read."""
    record = store.get(commit_run_key(scope, stream))
    return decode_commit_run(record.body) if record else None


def _commit_run(body: Body) -> CommitRun:
    return CommitRun(
        transactions=tuple(int(one, 16) for one in body["transactions"]),
        reference_epoch=int(body["reference_epoch"]),
        active_epoch=int(body["active_epoch"]),
        rolls=bool(body["rolls"]),
        started_ms=int(body["started"]),
        incomplete=tuple(int(one, 16) for one in body.get("incomplete", [])),
    )

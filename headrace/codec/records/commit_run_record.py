"""The commit that runs on a stream: an interrupted commit continues from this record."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.transactions import CommitRun, transaction_text

RUN_SORT = "run"


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


def commit_run_of_body(body: Body) -> CommitRun:
    return decoded("commit run", body, _commit_run)


def _commit_run(body: Body) -> CommitRun:
    return CommitRun(
        transactions=tuple(int(one, 16) for one in body["transactions"]),
        reference_epoch=int(body["reference_epoch"]),
        active_epoch=int(body["active_epoch"]),
        rolls=bool(body["rolls"]),
        started_ms=int(body["started"]),
        incomplete=tuple(int(one, 16) for one in body.get("incomplete", [])),
    )

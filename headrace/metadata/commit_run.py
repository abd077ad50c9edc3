"""The running commit of a stream's transactions: an interrupted commit continues from this record."""

from __future__ import annotations

from typing import Any

from headrace.metadata.commit_order import order_key, replace_order
from headrace.metadata.commit_part import delete_commit_part
from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.commit_runs import CommitRun, RunSet, WaitingMark
from headrace.model.errors import ConflictError
from headrace.model.requests import RequestKind
from headrace.model.streams import Stream
from headrace.model.transactions import CommitOrder, transaction_text
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Replace, Write, WriteConflictError

RUN_SORT = "run"


def commit_run_key(scope: str, stream: str) -> Key:
    return Key(transactions_partition(scope, stream), RUN_SORT)


def commit_run_body(run: CommitRun) -> dict[str, Any]:
    optional: dict[str, Any] = {}
    if run.incomplete:
        optional["incomplete"] = [transaction_text(one) for one in run.incomplete]
    if run.sets:
        optional["sets"] = [_set_fields(one) for one in run.sets]
    return versioned(
        transactions=[transaction_text(one) for one in run.transactions],
        reference_epoch=run.reference_epoch,
        active_epoch=run.active_epoch,
        rolls=run.rolls,
        started=run.started_ms,
        **optional,
    )


def decode_commit_run(body: Body) -> CommitRun:
    return decoded("commit run", body, _commit_run)


def create_run(scope: str, stream: str, run: CommitRun) -> Create:
    return Create(commit_run_key(scope, stream), commit_run_body(run))


def replace_run(scope: str, stream: str, run: CommitRun) -> Replace:
    """The first change of a run; its transaction also writes the current record, whose version is checked."""
    return Replace(commit_run_key(scope, stream), commit_run_body(run), 0)


def delete_run(scope: str, stream: str) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return Delete(commit_run_key(scope, stream), None)


def set_ends(stream: Stream, one: RunSet) -> list[Write]:
    """The writes after which a set's entry in the order means what is left, or the set is gone.

    The transaction of these writes also writes the current record, whose version is checked.
    """
    if one.rest is not None:
        return [replace_order(stream.scope, stream.name, one.mark, one.rest)]
    former = Delete(order_key(stream.scope, stream.name, one.mark.order), None)
    return [former, delete_commit_part(stream.scope, stream.name, one.set_id, None)]


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
        sets=tuple(map(_run_set, body.get("sets", []))),
    )


def _set_fields(one: RunSet) -> dict[str, Any]:
    """The entry of a set as the run found it, and the position and the id of the member that is next after the run."""
    mark, order = one.mark, one.mark.order
    optional = {name: value for name, value in (("passed", mark.passed), ("version", mark.version)) if value}
    return {
        "set": one.set_id,
        "first": transaction_text(mark.transaction_id),
        "marked": mark.marked_ms,
        "order": [order.number, transaction_text(order.group), order.index],
        "rest": None if one.rest is None else [one.rest.position, transaction_text(one.rest.transaction_id)],
        **optional,
    }


def _run_set(fields: Body) -> RunSet:
    number, group, index = fields["order"]
    mark = WaitingMark(
        int(fields["first"], 16),
        int(fields["marked"]),
        CommitOrder(int(number), int(group, 16), int(index)),
        str(fields["set"]),
        int(fields.get("passed", 0)),
        int(fields.get("version", 0)),
    )
    if fields["rest"] is None:
        return RunSet(mark, None)
    position, following = fields["rest"]
    return RunSet(mark, mark.after(int(position), int(following, 16)))


def check_commit_does_not_roll(store: MetadataStore, stream: Stream) -> None:
    """Check that an operation on active segments may wait for the batch of commits that runs, if one runs.

    Raises:
        ConflictError: the batch replaces the segments; repeat when it is complete.
        WriteConflictError: the batch has just ended; read the stream again.
    """
    if not stream.state.runs(RequestKind.COMMIT_TRANSACTIONS):
        return
    run = find_commit_run(store, stream.scope, stream.name)
    if run is None:
        raise WriteConflictError(f"a commit of {stream.scoped_name} has just ended", {})
    if run.rolls:
        raise ConflictError(f"the segments of {stream.scoped_name} are just being replaced: repeat soon")

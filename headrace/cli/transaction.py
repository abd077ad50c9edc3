"""`headrace transaction`: list, get, commit, abort, commit-all, commit-set.

Programs write events in transactions. These actions show the state of a transaction, and commit or abort it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.transactions import CommitSetView, TransactionView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, state_text, time_text
from headrace.cli.parameters import StreamName, checked, segment_text
from headrace.cli.session import Session
from headrace.model.transactions import check_commit_set_key, parse_transaction_id, transaction_text

app = new_app()

_EXAMPLE_ID = "0123456789abcdef0123456789abcdef"
_transaction_id = checked(lambda text: transaction_text(parse_transaction_id(text)))

TransactionId = Annotated[
    str,
    typer.Argument(
        parser=_transaction_id,
        metavar="TRANSACTION",
        help="id of the transaction: 32 hex digits",
        show_default=False,
    ),
]
CommitKey = Annotated[
    str,
    typer.Argument(
        parser=checked(check_commit_set_key),
        metavar="KEY",
        help="name of the commit; a repeat with this key changes nothing",
        show_default=False,
    ),
]


@action(app, "list", examples=["headrace transaction list shop/orders --completed"])
def list_(
    session: Session,
    stream: StreamName,
    completed: Annotated[
        bool, typer.Option("--completed", help="list the newest completed ones instead, up to 500")
    ] = False,
) -> Outcome:
    """List the transactions that are neither committed nor aborted, by id."""
    if completed:
        ended = session.client.admin.transactions.list_completed(*stream)
        entries = [{"transaction": identifier, "state": state} for identifier, state in ended]
        rows = [(identifier, state_text(state)) for identifier, state in ended]
        return Outcome({"transactions": entries}, ("TRANSACTION", "STATE"), rows)
    found = session.client.admin.transactions.list_open(*stream)
    return Outcome(
        {"transactions": [transaction_document(one) for one in found]},
        ("TRANSACTION", "STATE", "CREATED", "LEASE ENDS"),
        [
            (one.transaction, state_text(one.state), time_text(one.creation_time_ms), time_text(one.lease_end_ms))
            for one in found
        ],
    )


@action(app, "get", examples=[f"headrace transaction get shop/orders {_EXAMPLE_ID}"])
def get(session: Session, stream: StreamName, transaction: TransactionId) -> Outcome:
    """Show a transaction with its segments."""
    found = session.client.admin.transactions.get(*stream, transaction)
    segments = [{"segmentId": one.segment_id, "name": one.transaction_segment} for one in found.segments]
    ended = found.completion_time_ms
    details = [
        ("transaction", found.transaction),
        ("state", state_text(found.state)),
        ("created", time_text(found.creation_time_ms)),
        ("lease ends", time_text(found.lease_end_ms)),
        ("completed", None if ended is None else time_text(ended)),
        ("segments", [segment_text(one.segment_id) for one in found.segments]),
    ]
    return Outcome(transaction_document(found) | {"segments": segments}, details=details)


@action(app, "commit", examples=[f"headrace transaction commit shop/orders {_EXAMPLE_ID}"])
def commit(session: Session, stream: StreamName, transaction: TransactionId) -> Outcome:
    """Commit a transaction: its events are added to the stream."""
    return _ended(session.client.admin.transactions.commit(*stream, transaction))


@action(app, "abort", examples=[f"headrace transaction abort shop/orders {_EXAMPLE_ID}"])
def abort(session: Session, stream: StreamName, transaction: TransactionId) -> Outcome:
    """Abort a transaction: its events are deleted."""
    return _ended(session.client.admin.transactions.abort(*stream, transaction))


@action(app, "commit-all", examples=[f"headrace transaction commit-all shop/orders batch-7 {_EXAMPLE_ID}"])
def commit_all(
    session: Session,
    stream: StreamName,
    key: CommitKey,
    transactions: Annotated[
        list[str], typer.Argument(parser=_transaction_id, metavar="TRANSACTION...", help="up to 40 ids")
    ],
) -> Outcome:
    """Commit several transactions atomically, at most once per key."""
    return _set(session.client.admin.transactions.commit_all(*stream, key, transactions))


@action(app, "commit-set", examples=["headrace transaction commit-set shop/orders batch-7"])
def commit_set(session: Session, stream: StreamName, key: CommitKey) -> Outcome:
    """Show the transactions that were committed under a key."""
    return _set(session.client.admin.transactions.commit_set(*stream, key))


def transaction_document(one: TransactionView) -> dict[str, Any]:
    """A transaction as JSON, without its segments."""
    return {
        "transaction": one.transaction,
        "state": one.state,
        "creationTimeMs": one.creation_time_ms,
        "leaseEndMs": one.lease_end_ms,
        "completionTimeMs": one.completion_time_ms,
    }


def _ended(one: TransactionView) -> Outcome:
    return Outcome(transaction_document(one), text=f"transaction {one.transaction} is {state_text(one.state)}")


def _set(found: CommitSetView) -> Outcome:
    document = {"key": found.key, "transactions": list(found.transactions), "timeMs": found.time_ms, "new": found.new}
    when = "now" if found.new else f"at {time_text(found.time_ms)}"
    return Outcome(document, text=f"{len(found.transactions)} transactions were committed under {found.key}, {when}")

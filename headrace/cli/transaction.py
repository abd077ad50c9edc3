"""`headrace transaction`: list, get, commit, abort, abort-labelled, commit-all, committed-epoch.

Programs write events in transactions. These actions show the state of a transaction, and commit or abort it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.transactions import TransactionView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, state_text, time_text
from headrace.cli.parameters import StreamName, checked
from headrace.cli.session import Session
from headrace.codec.places import segment_text
from headrace.model.commit_sets import EPOCH_MAX, check_set_writer
from headrace.model.transactions import check_label, parse_transaction_id, transaction_text

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
LabelPrefix = Annotated[
    str,
    typer.Argument(parser=checked(check_label), metavar="PREFIX", help="how the labels begin", show_default=False),
]
_WRITER_HELP = "name of the writer, whose epochs are numbered"


@action(app, "list", examples=["headrace transaction list shop/orders --completed"])
def list_(
    session: Session,
    stream: StreamName,
    completed: Annotated[
        bool, typer.Option("--completed", help="list the newest completed ones instead, up to 500")
    ] = False,
    label_prefix: Annotated[
        str | None,
        typer.Option(parser=checked(check_label), metavar="PREFIX", help="only open ones whose label begins so"),
    ] = None,
) -> Outcome:
    """List the transactions that are neither committed nor aborted, by id."""
    if completed:
        ended = session.client.admin.transactions.list_completed(*stream)
        entries = [each.to_json() for each in ended]
        rows = [(entry.transaction, state_text(entry.state)) for entry in ended]
        return Outcome({"transactions": entries}, ("TRANSACTION", "STATE"), rows)
    listed = session.client.admin.transactions.list_open(*stream, label_prefix=label_prefix)
    return Outcome(
        {"transactions": [transaction_document(each) for each in listed]},
        ("TRANSACTION", "STATE", "CREATED", "LEASE ENDS", "LABEL"),
        [
            (
                entry.transaction,
                state_text(entry.state),
                time_text(entry.creation_time_ms),
                time_text(entry.lease_end_ms),
                entry.label or "",
            )
            for entry in listed
        ],
    )


@action(app, "get", examples=[f"headrace transaction get shop/orders {_EXAMPLE_ID}"])
def get(session: Session, stream: StreamName, transaction: TransactionId) -> Outcome:
    """Show a transaction with its segments."""
    view = session.client.admin.transactions.get(*stream, transaction)
    segments = [{"segmentId": segment.segment_id, "name": segment.transaction_segment} for segment in view.segments]
    ended = view.completion_time_ms
    details = [
        ("transaction", view.transaction),
        ("state", state_text(view.state)),
        ("created", time_text(view.creation_time_ms)),
        ("lease ends", time_text(view.lease_end_ms)),
        ("completed", None if ended is None else time_text(ended)),
        ("label", view.label),
        ("segments", [segment_text(segment.segment_id) for segment in view.segments]),
    ]
    return Outcome(transaction_document(view) | {"segments": segments}, details=details)


@action(app, "commit", examples=[f"headrace transaction commit shop/orders {_EXAMPLE_ID}"])
def commit(session: Session, stream: StreamName, transaction: TransactionId) -> Outcome:
    """Commit a transaction: its events are added to the stream."""
    return _ended(session.client.admin.transactions.commit(*stream, transaction))


@action(app, "abort", examples=[f"headrace transaction abort shop/orders {_EXAMPLE_ID}"])
def abort(session: Session, stream: StreamName, transaction: TransactionId) -> Outcome:
    """Abort a transaction: its events are deleted."""
    return _ended(session.client.admin.transactions.abort(*stream, transaction))


@action(app, "abort-labelled", examples=["headrace transaction abort-labelled shop/orders job-7/"])
def abort_labelled(session: Session, stream: StreamName, label_prefix: LabelPrefix) -> Outcome:
    """Abort all open transactions whose label begins with a text."""
    aborted = session.client.admin.transactions.abort_labelled(*stream, label_prefix)
    return Outcome({"aborted": aborted}, text=f"{aborted} transactions are aborted")


@action(
    app,
    "commit-all",
    examples=[f"headrace transaction commit-all shop/orders --writer job-7 --epoch 42 {_EXAMPLE_ID}"],
)
def commit_all(
    session: Session,
    stream: StreamName,
    transactions: Annotated[
        list[str], typer.Argument(parser=_transaction_id, metavar="TRANSACTION...", help="ids of transactions")
    ],
    writer: Annotated[
        str, typer.Option(parser=checked(check_set_writer), metavar="WRITER", help=_WRITER_HELP, show_default=False)
    ],
    epoch: Annotated[
        int, typer.Option(min=0, max=EPOCH_MAX, help="number of this set; it grows from set to set", show_default=False)
    ],
) -> Outcome:
    """Commit several transactions atomically, once for each epoch of a writer."""
    result = session.client.admin.transactions.commit_all(*stream, transactions, writer=writer, epoch=epoch)
    document = {"writer": result.writer, "epoch": result.epoch, "timeMs": result.time_ms, "new": result.new}
    if result.new:
        return Outcome(document, text=f"{len(transactions)} transactions are committed as epoch {epoch} of {writer}")
    when = time_text(result.time_ms)
    return Outcome(document, text=f"epoch {result.epoch} of {writer} was committed at {when}: nothing is committed now")


@action(app, "committed-epoch", examples=["headrace transaction committed-epoch shop/orders job-7"])
def committed_epoch(
    session: Session,
    stream: StreamName,
    writer: Annotated[
        str, typer.Argument(parser=checked(check_set_writer), metavar="WRITER", help=_WRITER_HELP, show_default=False)
    ],
) -> Outcome:
    """Show the last epoch of a writer that was committed."""
    epoch = session.client.admin.transactions.committed_epoch(*stream, writer)
    text = f"no epoch of {writer} was committed" if epoch is None else f"epoch {epoch} of {writer} was committed"
    return Outcome({"writer": writer, "epoch": epoch}, text=text)


def transaction_document(transaction: TransactionView) -> dict[str, Any]:
    """A transaction as JSON, without its segments."""
    return {
        "transaction": transaction.transaction,
        "state": transaction.state,
        "creationTimeMs": transaction.creation_time_ms,
        "leaseEndMs": transaction.lease_end_ms,
        "completionTimeMs": transaction.completion_time_ms,
        "label": transaction.label,
    }


def _ended(transaction: TransactionView) -> Outcome:
    return Outcome(
        transaction_document(transaction),
        text=f"transaction {transaction.transaction} is {state_text(transaction.state)}",
    )

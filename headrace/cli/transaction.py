"""`headrace transaction`: list, get, commit, abort, commit-all, commit-set.

Programs write events in transactions. These actions show the state of a transaction, and commit or abort it.
"""

from __future__ import annotations

import argparse
from typing import Any

from headrace.api.transactions import CommitSetView, TransactionView
from headrace.cli.arguments import add_stream, checked, stream_of
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace
from headrace.model.transactions import check_commit_set_key, parse_transaction_id, transaction_text

_transaction_id = checked(lambda text: transaction_text(parse_transaction_id(text)))
_key = checked(check_commit_set_key)


def _document(one: TransactionView) -> dict[str, Any]:
    return {
        "transaction": one.transaction,
        "state": one.state,
        "creationTimeMs": one.creation_time_ms,
        "leaseEndMs": one.lease_end_ms,
        "completionTimeMs": one.completion_time_ms,
    }


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    if options.completed:
        completed = client.admin.transactions.list_completed(*stream_of(options))
        entries = [{"transaction": identifier, "state": state} for identifier, state in completed]
        return Outcome({"transactions": entries}, ("TRANSACTION", "STATE"), completed)
    found = client.admin.transactions.list_open(*stream_of(options))
    rows = [(one.transaction, one.state, time_text(one.creation_time_ms), time_text(one.lease_end_ms)) for one in found]
    document = {"transactions": [_document(one) for one in found]}
    return Outcome(document, ("TRANSACTION", "STATE", "CREATED", "LEASE ENDS"), rows)


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.transactions.get(*stream_of(options), options.transaction)
    segments = [{"segmentId": one.segment_id, "name": one.transaction_segment} for one in found.segments]
    return Outcome(_document(found) | {"segments": segments})


def _commit(client: Headrace, options: argparse.Namespace) -> Outcome:
    return _ended(client.admin.transactions.commit(*stream_of(options), options.transaction))


def _abort(client: Headrace, options: argparse.Namespace) -> Outcome:
    return _ended(client.admin.transactions.abort(*stream_of(options), options.transaction))


def _ended(one: TransactionView) -> Outcome:
    return Outcome(_document(one), text=f"transaction {one.transaction} is {one.state}")


def _commit_all(client: Headrace, options: argparse.Namespace) -> Outcome:
    return _set(client.admin.transactions.commit_all(*stream_of(options), options.key, options.transactions))


def _commit_set(client: Headrace, options: argparse.Namespace) -> Outcome:
    return _set(client.admin.transactions.commit_set(*stream_of(options), options.key))


def _set(found: CommitSetView) -> Outcome:
    document = {"key": found.key, "transactions": list(found.transactions), "timeMs": found.time_ms, "new": found.new}
    when = "now" if found.new else f"at {time_text(found.time_ms)}"
    return Outcome(document, text=f"{len(found.transactions)} transactions were committed under {found.key}, {when}")


def _add_transaction(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    parser.add_argument(
        "transaction", type=_transaction_id, metavar="TRANSACTION", help="id of the transaction: 32 hex digits"
    )


def _command() -> ResourceCommand:
    command = ResourceCommand("transaction", "Transactions of a stream.")

    parser = command.action("list", _list, "List the transactions that are neither committed nor aborted, by id.")
    add_stream(parser)
    parser.add_argument("--completed", action="store_true", help="list the newest completed ones instead, up to 500")

    _add_transaction(command.action("get", _get, "Show a transaction with its segments."))
    _add_transaction(command.action("commit", _commit, "Commit a transaction: its events are added to the stream."))
    _add_transaction(command.action("abort", _abort, "Abort a transaction: its events are deleted."))

    parser = command.action("commit-all", _commit_all, "Commit several transactions atomically, at most once per key.")
    add_stream(parser)
    parser.add_argument(
        "key", type=_key, metavar="KEY", help="name of the commit; a repeat with this key changes nothing"
    )
    parser.add_argument("transactions", type=_transaction_id, nargs="+", metavar="TRANSACTION", help="up to 40 ids")

    parser = command.action("commit-set", _commit_set, "Show the transactions that were committed under a key.")
    add_stream(parser)
    parser.add_argument("key", type=_key, metavar="KEY")
    return command


main = _command()

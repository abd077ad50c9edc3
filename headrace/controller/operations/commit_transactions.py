"""Commit the transactions of a stream that are marked for commit, in batches (`steps/transaction_commits.py`).

The API marks the transactions (`services/transactions.py`), and the message of a mark only names the stream. A batch
begins in the write that puts the stream in COMMITTING_TXN. It has no intent: if the message is lost, the tick sends it
again. Other operations that are accepted meanwhile wait for the batch, and finish it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import STREAM
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction_messages import COMMIT, parse_transaction_message
from headrace.model.requests import RequestKind
from headrace.ports.clock import require_time_for_piece


class CommitProcessor:
    """Processes the messages of the commits queue; safe for any number of threads and processes."""

    def __init__(self, tools: Tools) -> None:
        self._commits = TransactionCommits(tools)

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Commit all transactions that were marked before the message was sent, and perhaps later ones.

        If marks keep coming until the time is over, that is not a failure: another message commits the rest.

        Raises:
            InvalidRequestError: the body is not a commit message, so a repeat cannot succeed.
            ConflictError: another operation runs on the stream: deliver the message again.
            UnavailableError, ThrottledError: deliver the message again.
            WorkLeftError: the time is over. The progress is stored, and another call continues.
            NotFoundError, CorruptError: a segment is missing, or stored records contradict each other. An operator must
                look.
        """
        message = parse_transaction_message(message_body, COMMIT)
        while self._next_run(message.scope, message.stream):
            require_time_for_piece(f"commits of {message.scope}/{message.stream}")

    def _next_run(self, scope: str, stream: str) -> bool:
        # After a conflict another process works on the same run: read again and continue there.
        return repeat_on_conflict(lambda: self._commits.next_run(scope, stream), ATTEMPTS_PER_MESSAGE_MAX)


def _finish_batch(tools: Tools, stored: StoredStream) -> None:
    TransactionCommits(tools).next_run(stored.stream.scope, stored.stream.name)


COMMIT_TRANSACTIONS = Operation(
    RequestKind.COMMIT_TRANSACTIONS,
    STREAM,
    (Step("finish the batch", _finish_batch),),
    rollback=MUST_COMPLETE,
)
"""For operations on other resources that find a batch running on a stream."""

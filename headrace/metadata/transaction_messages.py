"""Queue messages about transactions: commits, one group per stream, and aborts, one group per transaction.

A stream has one commit message at a time, that of its oldest mark, however many transactions wait. A message only
announces work; the processor reads from the records what the work is. So a message may arrive twice, late, or when
there is no work left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name, scoped_stream_name
from headrace.model.transactions import parse_transaction_id, transaction_text
from headrace.ports.request_queue import RequestQueue

COMMIT = "commit_transaction"


ABORT = "abort_transaction"


@dataclass(frozen=True, slots=True)
class TransactionMessage:
    """`kind` is COMMIT or ABORT."""

    kind: str
    scope: str
    stream: str
    transaction_id: int


@dataclass(frozen=True, slots=True)
class TransactionQueues:
    """The queues of the two kinds of messages."""

    commits: RequestQueue
    aborts: RequestQueue

    def send(self, message: TransactionMessage, attempt: int = 0) -> None:
        """Queue the message. A queue drops a message that it got minutes ago, so each `attempt` needs its own number.

        Raises:
            UnavailableError, ThrottledError: the queue may not have accepted the message.
        """
        scoped_name = scoped_stream_name(message.scope, message.stream)
        text = transaction_text(message.transaction_id)
        unique = hashlib.sha256(f"{message.kind}:{scoped_name}:{text}:{attempt}".encode()).hexdigest()
        if message.kind == COMMIT:
            self.commits.send(group=scoped_name, body=transaction_message_body(message), deduplication_id=unique)
        else:
            self.aborts.send(group=text, body=transaction_message_body(message), deduplication_id=unique)


def transaction_message_body(message: TransactionMessage) -> dict[str, str]:
    return {
        "kind": message.kind,
        "scope": message.scope,
        "stream": message.stream,
        "transaction": transaction_text(message.transaction_id),
    }


def parse_transaction_message(body: Mapping[str, Any], kind: str) -> TransactionMessage:
    """A message of that kind.

    Raises:
        InvalidRequestError: the body is not such a message, so a repeat cannot succeed.
    """
    if set(body) != {"kind", "scope", "stream", "transaction"} or not all(
        isinstance(each, str) for each in body.values()
    ):
        raise InvalidRequestError("a message about a transaction holds the texts kind, scope, stream and transaction")
    if body["kind"] != kind:
        raise InvalidRequestError(f"expected a message of kind {kind}, not {body['kind'][:100]!r}")
    scope, stream = check_known_name("scope", body["scope"]), check_known_name("stream", body["stream"])
    return TransactionMessage(kind, scope, stream, parse_transaction_id(body["transaction"]))

"""Abort a transaction that is marked for abort. Each one is aborted by itself, at any time.

The API marks the transaction (`services/transactions.py`); the message only names it. A transaction has no intent. If
its message is lost, the tick sends it again. A dead letter of an abort is stuck until the transaction is completed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.controller.engine import Tools
from headrace.controller.steps.transaction_aborts import TransactionAborts
from headrace.metadata.stream import current_key
from headrace.metadata.transaction_messages import ABORT, parse_transaction_message
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.transactions import TransactionState


class AbortProcessor:
    """Processes the messages of the aborts queue; safe for any number of threads and processes."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._transactions = TransactionRecords(tools.store)
        self._aborts = TransactionAborts(tools)

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Abort the transaction of the message if it is marked for abort; any other stays unchanged.

        Raises:
            InvalidRequestError: the body is not an abort message, so a repeat cannot succeed.
            UnavailableError, ThrottledError: deliver the message again.
        """
        message = parse_transaction_message(message_body, ABORT)
        (stored,), (current,) = self._transactions.find_to_mark(
            message.scope, message.stream, [message.transaction_id], current_key(message.scope, message.stream)
        )
        stored_stream = self._tools.records.stored(current)
        if stored is None or stored.transaction.state is not TransactionState.ABORTING:
            return
        if stored_stream is not None:
            self._aborts.abort(stored_stream.stream, stored)
        else:
            self._aborts.forget_if_former(message.scope, message.stream, stored)

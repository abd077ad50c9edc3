"""The rpcs of Pravega's controller service on transactions, which call the same service as the HTTP API.

An rpc that conflicts with another change of the same record waits and tries again, so that the client need not repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.waiting import Waits
from headrace.controller.services.transaction_service import TransactionService
from headrace.model.transactions import TransactionState, WriterTime, check_lease
from headrace.model.writer_marks import check_writer_name

Rpc = Callable[[Any], Any | Awaitable[Any]]

NO_TIMESTAMP: Final = -(1 << 63)
"""The time in a commit of a client that notes no time."""

LEASE_MS_MAX: Final = 600_000
"""Pravega's controllers allow short leases only, and its clients ping for as long as they run."""

_HALF_BITS: Final = 64
_HALF_MASK: Final = (1 << _HALF_BITS) - 1
_SIGN_BIT: Final = 1 << (_HALF_BITS - 1)

_STATES = {
    TransactionState.OPEN: pb.TxnState.OPEN,
    TransactionState.COMMITTING: pb.TxnState.COMMITTING,
    TransactionState.COMMITTED: pb.TxnState.COMMITTED,
    TransactionState.ABORTING: pb.TxnState.ABORTING,
    TransactionState.ABORTED: pb.TxnState.ABORTED,
}
_OUTCOMES = {
    TransactionState.COMMITTED: pb.TxnResponse.COMMITTED,
    TransactionState.ABORTED: pb.TxnResponse.ABORTED,
}


class TransactionRpcs:
    """Each method gets the request message and returns the reply."""

    def __init__(self, transactions: TransactionService, waits: Waits) -> None:
        self._transactions = transactions
        self._waits = waits

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {
            "createTransaction": self.create_transaction,
            "pingTransaction": self.ping_transaction,
            "commitTransaction": self.commit_transaction,
            "abortTransaction": self.abort_transaction,
            "checkTransactionState": self.transaction_state,
            "listCompletedTransactions": self.completed_transactions,
        }

    async def create_transaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        """Return when the segments of the transaction exist, with its id and the segments that they belong to."""
        scope, stream = messages.known_stream(request.streamInfo)
        made = await self._waits.accepted(
            f"beginning a transaction on {scope}/{stream}",
            lambda: self._transactions.create_transaction(scope, stream, _lease_ms(request)),
        )
        return pb.CreateTxnResponse(
            txnId=_id_message(made.transaction_id),
            activeSegments=[messages.segment_range_message(scope, stream, segment) for segment in made.segments],
        )

    async def ping_transaction(self, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
        scope, stream = messages.known_stream(request.streamInfo)
        identifier = _id_of(request.txnId)
        await self._waits.accepted(
            f"pinging a transaction of {scope}/{stream}",
            lambda: self._transactions.ping_transaction(scope, stream, identifier, _lease_ms(request)),
        )
        return pb.PingTxnStatus(status=pb.PingTxnStatus.OK)

    async def commit_transaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        """Return when the transaction is marked for commit; a workflow adds its events to the stream soon after."""
        scope, stream = messages.known_stream(request.streamInfo)
        identifier, noted = _id_of(request.txnId), _writer_time(request)
        await self._waits.accepted(
            f"committing a transaction of {scope}/{stream}",
            lambda: self._transactions.commit_transaction(scope, stream, identifier, noted),
        )
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS)

    async def abort_transaction(self, request: pb.TxnRequest) -> pb.TxnStatus:
        scope, stream = messages.known_stream(request.streamInfo)
        identifier = _id_of(request.txnId)
        await self._waits.accepted(
            f"aborting a transaction of {scope}/{stream}",
            lambda: self._transactions.abort_transaction(scope, stream, identifier),
        )
        return pb.TxnStatus(status=pb.TxnStatus.SUCCESS)

    def transaction_state(self, request: pb.TxnRequest) -> pb.TxnState:
        scope, stream = messages.known_stream(request.streamInfo)
        transaction = self._transactions.get_transaction(scope, stream, _id_of(request.txnId))
        return pb.TxnState(state=_STATES[transaction.state])

    def completed_transactions(self, request: pb.ListCompletedTxnRequest) -> pb.ListCompletedTxnResponse:
        completed = self._transactions.list_completed(*messages.known_stream(request.streamInfo))
        return pb.ListCompletedTxnResponse(
            response=[
                pb.TxnResponse(txnId=_id_message(transaction.transaction_id), status=_OUTCOMES[transaction.state])
                for transaction in completed
            ]
        )


def _lease_ms(request: pb.CreateTxnRequest | pb.PingTxnRequest) -> int:
    """Raises InvalidRequestError, code "lease_too_small" or "lease_too_large"."""
    return check_lease(request.lease, LEASE_MS_MAX)


def _id_of(message: pb.TxnId) -> int:
    return (message.highBits & _HALF_MASK) << _HALF_BITS | message.lowBits & _HALF_MASK


def _id_message(transaction_id: int) -> pb.TxnId:
    return pb.TxnId(highBits=_signed(transaction_id >> _HALF_BITS), lowBits=_signed(transaction_id & _HALF_MASK))


def _signed(half: int) -> int:
    return half - (1 << _HALF_BITS) if half & _SIGN_BIT else half


def _writer_time(request: pb.TxnRequest) -> WriterTime | None:
    if request.timestamp == NO_TIMESTAMP or not request.writerId:
        return None
    return WriterTime(check_writer_name(request.writerId), request.timestamp)

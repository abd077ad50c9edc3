"""Transactions for programs without an event loop: the asynchronous writer on the client's background thread."""

from __future__ import annotations

from types import TracebackType

from headrace.client.event_blocks import Ack
from headrace.client.event_writer import Event
from headrace.client.loop_thread import LoopThread
from headrace.client.transactional_writer import AsyncTransaction, AsyncTransactionalWriter, transaction_event
from headrace.model.errors import UnavailableError


class Transaction:
    """One open transaction; made by `TransactionalWriter.begin`. Used with `with`, it is committed, or aborted on an
    error. Thread-safe."""

    def __init__(self, thread: LoopThread, transaction: AsyncTransaction) -> None:
        self._thread = thread
        self._transaction = transaction
        self._packer = transaction.packer
        self.id = transaction.id

    def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event; waits only while the buffer is full. Raises as `AsyncTransaction.write`."""
        payload = transaction_event(event)
        while (ack := self._packer.add(payload, routing_key)) is None:
            self._packer.wait_for_room()
        return ack

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every event written is durable; raises what ended the transaction, if something did."""
        if not self._packer.wait_until_empty(timeout_s):
            raise UnavailableError(f"not every event was acknowledged within {timeout_s} s; they are still tried")
        if self._packer.failure is not None:
            raise self._packer.failure

    def commit(self, *, time: int | None = None, writer: str | None = None, wait: bool = False) -> None:
        """As `AsyncTransaction.commit`."""
        self._thread.run(self._transaction.commit(time=time, writer=writer, wait=wait))

    def abort(self) -> None:
        """Drops the events. Raises IllegalStateError, code "transaction_committed"."""
        self._thread.run(self._transaction.abort())

    def state(self) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return self._thread.run(self._transaction.state())

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))


class TransactionalWriter:
    """Begins transactions on a stream; make it with `Headrace.transactional_writer`, use it with `with`."""

    def __init__(self, thread: LoopThread, writer: AsyncTransactionalWriter) -> None:
        self._thread = thread
        self._writer = writer
        self.closed = False

    def begin(self) -> Transaction:
        """A new transaction. Raises NotFoundError, or SealedError if the stream takes no more events."""
        return Transaction(self._thread, self._thread.run(self._writer.begin()))

    def transaction(self, transaction_id: str) -> Transaction:
        """A transaction that somebody else began, to go on with it. Raises as its asynchronous twin."""
        return Transaction(self._thread, self._thread.run(self._writer.transaction(transaction_id)))

    def close(self) -> None:
        """Lets go of open transactions: they stay until their leases end. Closing again does nothing."""
        if not self.closed:
            self.closed = True
            self._thread.run(self._writer.close())

    def __enter__(self) -> TransactionalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

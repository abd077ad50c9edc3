"""`Transaction` and `TransactionalWriter` for programs without an event loop; thread-safe.

Generated from `transactional_writer.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.loop_thread import LoopThread
from headrace.client.synchronous import TransactionEvents
from headrace.client.transactional_writer import AsyncTransaction, AsyncTransactionalWriter


class Transaction(TransactionEvents):
    """One open transaction. `id` names it for ever; used with `with`, it is committed, or aborted on an error."""

    def __init__(self, thread: LoopThread, core: AsyncTransaction) -> None:
        super().__init__(core)
        self._thread = thread
        self._core = core

    @property
    def id(self) -> str:
        """32 lower-case hex digits: the transaction's name, for other processes too."""
        return self._core.id

    def commit(self, *, time: int | None = None, writer: str | None = None, wait: bool = False) -> None:
        """Flushes and commits; with `wait` it returns only when readers can see the events.

        `writer` and `time` tell that no older event of this writer follows, for watermarks.

        Raises:
            IllegalStateError: code "transaction_aborted": by request, or because nobody pinged it in time.
        """
        self._thread.run(self._core.commit(time=time, writer=writer, wait=wait))

    def abort(self) -> None:
        """Drops the events. Raises IllegalStateError, code "transaction_committed"."""
        self._thread.run(self._core.abort())

    def state(self) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return self._thread.run(self._core.state())

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._core.__aexit__(kind, error, trace))


class TransactionalWriter:
    """Begins transactions on a stream. Make it with `Headrace.transactional_writer`, use it with `with`.

    Closing it leaves open transactions to whoever knows their ids, until their leases end.
    """

    def __init__(self, thread: LoopThread, core: AsyncTransactionalWriter) -> None:
        self._thread = thread
        self._core = core

    def begin(self) -> Transaction:
        """A new transaction. Raises NotFoundError, or SealedError if the stream takes no more events."""
        return Transaction(self._thread, self._thread.run(self._core.begin()))

    def transaction(self, transaction_id: str) -> Transaction:
        """A transaction that somebody else began, to go on with it.

        Raises:
            NotFoundError: code "transaction_not_found".
            IllegalStateError: code "transaction_committed" or "transaction_aborted".
        """
        return Transaction(self._thread, self._thread.run(self._core.transaction(transaction_id)))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    def close(self) -> None:
        """Lets go of open transactions: they stay until their leases end. Closing again does nothing."""
        if not self.closed:
            self._thread.run(self._core.close())

    def __enter__(self) -> TransactionalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.run(self._core.__aexit__(kind, error, trace))

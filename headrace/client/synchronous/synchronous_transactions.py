"""`Transaction` and `TransactionalWriter` for programs without an event loop; thread-safe.

Generated from `writing.transactional_writer.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from types import TracebackType

from headrace.client.loop_thread import LoopCaller
from headrace.client.synchronous.synchronous_bases import TransactionEvents
from headrace.client.writing.transactional_writer import AsyncTransaction, AsyncTransactionalWriter


class Transaction(TransactionEvents):
    """An open transaction. At its end an `with` block commits it; after an exception it aborts it."""

    def __init__(self, thread: LoopCaller, core: AsyncTransaction) -> None:
        super().__init__(core)
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    @property
    def id(self) -> str:
        """32 lower-case hex digits, which other processes can also use to name the transaction."""
        return self._core.id

    def commit(self, *, time: int | None = None, writer: str | None = None, wait: bool = False) -> None:
        """Flushes and commits. With `wait` it returns only when readers can see the events.

        A commit can be repeated, also that of another client. `writer` and `time` record for watermarks that later
        events of this writer are not older than `time`.

        Raises:
            IllegalStateError: code "transaction_aborted": a client aborted it, or its lease expired. With `wait` also
                if a lost volume of a segment store took events of it. Code "transaction_committed": another client
                committed it before all events of this object were acknowledged.
        """
        self._thread.run(self._core.commit(time=time, writer=writer, wait=wait))

    def detach(self) -> None:
        """Flushes, and leaves the transaction open for another process, which commits or aborts it by its id.

        The lease is no longer renewed. Raises the same errors as `flush`.
        """
        self._thread.run(self._core.detach())

    def abort(self) -> None:
        """Aborts the transaction and deletes its events. Raises IllegalStateError, code "transaction_committed"."""
        self._thread.run(self._core.abort())

    def state(self) -> str:
        """Returns OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return self._thread.run(self._core.state())

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._thread.run if error is None else self._thread.end)(self._core.__aexit__(kind, error, trace))


class TransactionalWriter:
    """Begins transactions on a stream. Open it with `Headrace.transactional_writer`, use it with `with`.

    After `close`, other processes can continue its open transactions by their ids until the leases expire.
    """

    def __init__(self, thread: LoopCaller, core: AsyncTransactionalWriter) -> None:
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def begin(self, *, label: str | None = None) -> Transaction:
        """Begins a transaction. Each of its segments is created when the first event is written to it.

        With a `label` another process can find the transaction without its id.

        Raises:
            InvalidRequestError: code "invalid_label".
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
        """
        return Transaction(self._thread, self._thread.run(self._core.begin(label=label)))

    def transaction(self, transaction_id: str) -> Transaction:
        """Continues a transaction, which another process may have begun.

        One that was committed accepts no more events. Its state can be read, and its commit can be repeated.

        Raises:
            NotFoundError: code "transaction_not_found".
            IllegalStateError: code "transaction_aborted".
        """
        return Transaction(self._thread, self._thread.run(self._core.transaction(transaction_id)))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    def close(self) -> None:
        """Closes the writer. Open transactions stay open until their leases expire. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> TransactionalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))

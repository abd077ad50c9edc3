"""What a container has put into its ledger, how much of that is durable, and who waits for it.

The ledger reports entries in their order; this keeps that order for everybody who waits. After a failure nobody is
told success any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from headrace.model.errors import HeadraceError, InvalidRequestError, UnavailableError
from headrace.ports.ledger import Ledger

Parts = Sequence[bytes | memoryview]


class OperationLog:
    """`on_failure` is called once, with the first error."""

    def __init__(self, ledger: Ledger, on_failure: Callable[[HeadraceError], None]) -> None:
        self.ledger = ledger
        self.failure: HeadraceError | None = None
        self.last_entry = ledger.next_entry - 1
        self.durable_entry = self.last_entry
        self._on_failure = on_failure
        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting: set[asyncio.Future[None]] = set()

    def append(self, parts: Parts, reached: Callable[[HeadraceError | None], None]) -> int:
        """Log an entry and return its number; `reached` gets None when it is durable, else why it may not be.

        Raises:
            InvalidRequestError: the entry is too large; nothing was logged.
            UnavailableError, FencedError: the log has failed or was taken over; it stays so.
        """
        if self.failure is not None:
            raise self.failure
        entry = self.ledger.next_entry
        try:
            self.ledger.append(parts, _Logged(self, entry, reached))
        except InvalidRequestError:
            raise
        except HeadraceError as error:
            self.fail(error)
            raise
        self.last_entry = entry
        return entry

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back once everything logged so far is durable: at once if it is, never if the log fails."""
        if self.durable_entry >= self.last_entry:
            if self.failure is None:
                callback()
        else:
            self._barriers.append((self.last_entry, callback))

    async def durable(self) -> None:
        """Return once everything logged so far is durable.

        Raises:
            UnavailableError, FencedError: the log has failed or was taken over.
        """
        if self.failure is not None:
            raise self.failure
        if self.durable_entry < self.last_entry:
            future = self.expect()
            self._barriers.append((self.last_entry, lambda: resolve(future)))
            await future

    def expect(self) -> asyncio.Future[None]:
        """A future that gets the failure if there is one; somebody else resolves it otherwise."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
            return future
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def fail(self, error: HeadraceError) -> None:
        """Stop for good; everyone who waits gets the error."""
        if self.failure is not None:
            return
        self.failure = error
        self.ledger.close()
        self._barriers.clear()
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(error)
        self._on_failure(error)

    def advance(self, entry: int) -> None:
        self.durable_entry = entry
        while self._barriers and self._barriers[0][0] <= entry:
            self._barriers.popleft()[1]()


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future whose waiter may have gone."""
    if not future.done():
        future.set_result(None)


class _Logged:
    """Waits for one entry. After a failure every entry is reported as failed, durable or not."""

    __slots__ = ("_entry", "_log", "_reached")

    def __init__(self, log: OperationLog, entry: int, reached: Callable[[HeadraceError | None], None]) -> None:
        self._log = log
        self._entry = entry
        self._reached = reached

    def __call__(self, error: Exception | None) -> None:
        log = self._log
        if error is not None:
            log.fail(error if isinstance(error, HeadraceError) else UnavailableError(f"the log failed: {error}"))
        if log.failure is not None:
            self._reached(log.failure)
            return
        self._reached(None)
        log.advance(self._entry)

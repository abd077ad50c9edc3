"""`StateSynchronizer` for programs without an event loop; thread-safe.

Generated from `single_segment.state_synchronizer.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic

from headrace.client.loop_thread import LoopCaller
from headrace.client.single_segment.state_synchronizer import AsyncStateSynchronizer, S, U


class StateSynchronizer(Generic[S, U]):
    """A copy of a shared state. Make it with `Headrace.state_synchronizer`, use it with `with`.

    Every method that asks the store raises NotFoundError if the stream was deleted, UnavailableError if its store could
    not be reached for too long, and CorruptError if it holds something else than entries of such a state. If something
    else than `compact` has truncated the stream and the state is gone, it raises TruncatedError, code
    "state_truncated", until `initialize` writes a state.
    """

    def __init__(self, thread: LoopCaller, core: AsyncStateSynchronizer[S, U]) -> None:
        self._thread = thread
        self._core = core

    @property
    def state(self) -> S | None:
        """The copy, as it was when it was last brought up to date; None before that, or if there is no state yet."""
        return self._core.state

    @property
    def revision(self) -> int:
        """The revision of the copy: the offset in bytes after the last entry that was applied."""
        return self._core.revision

    def initialize(self, state: S) -> bool:
        """Writes the first state, if there is none yet. Returns whether there was none. The copy is then up to date.

        If the state was truncated, a first state is written behind what is left.
        """
        return self._thread.run(self._core.initialize(state))

    def fetch(self) -> S | None:
        """Brings the copy up to date. Returns it, None if there is no state yet."""
        return self._thread.run(self._core.fetch())

    def wait(self) -> S | None:
        """Waits until another process has changed the state, at most some 10 seconds. Returns the copy."""
        return self._thread.run(self._core.wait())

    def update(self, decide: Callable[[S], Sequence[U]]) -> tuple[U, ...]:
        """Writes the updates that `decide` returns for the current state, all or none. Returns those that were written.

        `decide` is called again with a newer state if another process was faster. If it returns none, nothing is
        written. It runs on the client's event loop, so it must not block.

        Raises:
            IllegalStateError: there is no state yet; or what `decide` raises.
        """
        return self._thread.run(self._core.update(decide))

    def update_unconditionally(self, updates: Sequence[U]) -> None:
        """Writes updates that are right in every state. The copy gets them when it is next brought up to date."""
        self._thread.run(self._core.update_unconditionally(updates))

    def bytes_since_compaction(self) -> int:
        """Returns the number of bytes that another process would read before its copy is up to date."""
        return self._thread.run(self._core.bytes_since_compaction())

    def compact(self) -> None:
        """Writes the state as a whole, and removes the entries before the state that was written so before that."""
        self._thread.run(self._core.compact())

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self) -> None:
        """Closes the connections. The copy keeps its value. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> StateSynchronizer[S, U]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))

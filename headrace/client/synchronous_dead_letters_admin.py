"""`DeadLettersAdmin` for programs without an event loop; thread-safe.

Generated from `dead_letters_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace.api.dead_letters import DeadLetterView
from headrace.client.dead_letters_admin import AsyncDeadLettersAdmin, DeadLetterPage
from headrace.client.loop_thread import LoopThread
from headrace.model.limits import PAGE_ITEMS_MAX


class DeadLettersAdmin:
    """Lists, inspects, replays and drops dead letters."""

    def __init__(self, thread: LoopThread, core: AsyncDeadLettersAdmin) -> None:
        self._thread = thread
        self._core = core

    def page(self, *, limit: int = PAGE_ITEMS_MAX, after: str | None = None) -> DeadLetterPage:
        """At most `limit` letters that follow the letter `after`, oldest first. There is no bound on how many exist."""
        return self._thread.run(self._core.page(limit=limit, after=after))

    def get(self, letter: str) -> DeadLetterView:
        """Raises NotFoundError if there is no such letter."""
        return self._thread.run(self._core.get(letter))

    def replay(self, letter: str) -> DeadLetterView:
        """Asks again for what the letter is about; doing it twice does no harm.

        Raises:
            NotFoundError: there is no such letter, or what it is about is no more.
            IllegalStateError: code "not_replayable"; or the state of the stream forbids the request by now.
        """
        return self._thread.run(self._core.replay(letter))

    def drop(self, letter: str) -> None:
        """Forgets the letter. Raises NotFoundError if there is no such letter."""
        self._thread.run(self._core.drop(letter))

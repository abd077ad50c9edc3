"""`DeadLettersAdmin` for programs without an event loop; thread-safe.

Generated from `administration.operators_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace.api.dead_letters import DeadLetterView
from headrace.client.administration.operators_admin import AsyncDeadLettersAdmin, DeadLetterPage
from headrace.client.loop_thread import LoopCaller
from headrace.model.limits import PAGE_ITEMS_MAX


class DeadLettersAdmin:
    """Lists, inspects, replays and drops dead letters."""

    def __init__(self, thread: LoopCaller, core: AsyncDeadLettersAdmin) -> None:
        self._thread = thread
        self._core = core

    def page(self, *, limit: int = PAGE_ITEMS_MAX, after: str | None = None) -> DeadLetterPage:
        """Lists at most `limit` letters after the letter `after`, oldest first. The total number is not limited."""
        return self._thread.run(self._core.page(limit=limit, after=after))

    def get(self, letter: str) -> DeadLetterView:
        """Returns a letter. Raises NotFoundError if there is no such letter."""
        return self._thread.run(self._core.get(letter))

    def replay(self, letter: str) -> DeadLetterView:
        """Sends the letter's request again; a repeat is harmless.

        Raises:
            NotFoundError: there is no such letter, or the resource of its request was deleted.
            IllegalStateError: code "not_replayable"; or the current state of the stream forbids the request.
        """
        return self._thread.run(self._core.replay(letter))

    def drop(self, letter: str) -> None:
        """Deletes a letter. Raises NotFoundError if there is no such letter."""
        self._thread.run(self._core.drop(letter))

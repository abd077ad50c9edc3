"""Settling lost races: what others have written meanwhile is read, and decides what there is still to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.model.errors import ConflictError
from headrace.ports.metadata_store import WriteConflictError

_T = TypeVar("_T")

ATTEMPTS_PER_CALL_MAX = 8
"""A caller would have to repeat what is given up."""

ATTEMPTS_PER_MESSAGE_MAX = 5
"""The message of what is given up is delivered again, a while later."""


def repeat_on_conflict(
    attempt: Callable[[], _T],
    attempts_max: int = ATTEMPTS_PER_CALL_MAX,
    conflict: type[ConflictError] = WriteConflictError,
) -> _T:
    """What `attempt` returns, which reads anew each time; the last conflict is raised, and any other error at once.

    Args:
        conflict: What may be settled by a repeat: lost writes; `ConflictError` where others tell in that way, too, that
            somebody works on the same thing, and may be done with it by now.
    """
    for _ in range(attempts_max - 1):
        try:
            return attempt()
        except conflict:
            continue
    return attempt()

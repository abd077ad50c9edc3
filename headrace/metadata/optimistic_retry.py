"""Optimistic retries: an operation that conflicts with another writer reads the records again and is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.model.backoff import doubled_pause, full_jitter
from headrace.model.errors import ConflictError
from headrace.ports.metadata_store import WriteConflictError

_T = TypeVar("_T")

ATTEMPTS_PER_CALL_MAX = 12
"""After the last attempt the caller must repeat the call. The pauses between them are at most 3.1 s together."""

ATTEMPTS_PER_MESSAGE_MAX = 5
"""After the last attempt the queue delivers the message again later."""


@dataclass(frozen=True, slots=True)
class ConflictBackoff:
    """Pauses that double up to a bound, with full jitter, so that writers that conflicted once rarely conflict again.

    `sleep` takes seconds; `jitter` returns uniform values in [0, 1).
    """

    sleep: Callable[[float], None]
    jitter: Callable[[], float]
    first_s: float = 0.01
    longest_s: float = 0.5

    def pause(self, failures: int) -> None:
        """Wait before the attempt that follows the `failures`-th conflict."""
        self.sleep(full_jitter(doubled_pause(failures, self.first_s, self.longest_s), self.jitter()))


def repeat_on_conflict(
    attempt: Callable[[], _T],
    attempts_max: int = ATTEMPTS_PER_CALL_MAX,
    conflict: type[ConflictError] = WriteConflictError,
    backoff: ConflictBackoff | None = None,
) -> _T:
    """Call `attempt` until it raises no conflict. It must read the records again each time.

    The conflict of the last attempt is raised, and any other error at once.

    Args:
        conflict: The errors to repeat after. `ConflictError` also includes operations that are refused because
            another one runs on the same resource: it may be complete at the next attempt.
        backoff: The pauses between attempts; without it the next attempt follows at once.
    """
    for failures in range(1, attempts_max):
        try:
            return attempt()
        except conflict:
            if backoff is not None:
                backoff.pause(failures)
    return attempt()

"""Repeating what lost to another writer: what others have written is read again, and decides what is left to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.model.errors import ConflictError
from headrace.ports.metadata_store import WriteConflictError

_T = TypeVar("_T")

ATTEMPTS_PER_CALL_MAX = 12
"""After the last one the caller has to repeat the call. The pauses between them are at most 3.1 s together."""

ATTEMPTS_PER_MESSAGE_MAX = 5
"""After the last one the message is delivered again, a while later."""


@dataclass(frozen=True, slots=True)
class ConflictBackOff:
    """Pauses that double up to a bound, with full jitter, so that writers which met once do not meet again.

    `sleep` takes seconds, `jitter` is uniform in [0, 1).
    """

    sleep: Callable[[float], None]
    jitter: Callable[[], float]
    first_s: float = 0.01
    longest_s: float = 0.5

    def pause(self, failures: int) -> None:
        """Wait before the attempt that follows the `failures`-th conflict."""
        self.sleep(self.jitter() * min(self.longest_s, self.first_s * 2 ** (failures - 1)))


def repeat_on_conflict(
    attempt: Callable[[], _T],
    attempts_max: int = ATTEMPTS_PER_CALL_MAX,
    conflict: type[ConflictError] = WriteConflictError,
    back_off: ConflictBackOff | None = None,
) -> _T:
    """What `attempt` returns, which reads again each time; the last conflict is raised, and any other error at once.

    Args:
        conflict: What a repeat may settle: conflicts of writes; `ConflictError` where others say in that way, too, that
            they work on the same thing, and may be done with it by now.
        back_off: How long to wait between attempts; without it the next one follows at once.
    """
    for failures in range(1, attempts_max):
        try:
            return attempt()
        except conflict:
            if back_off is not None:
                back_off.pause(failures)
    return attempt()

"""The pauses before failed work is retried: one rule for all kinds of due work."""

from __future__ import annotations

BACK_OFF_FIRST_MS = 10_000
BACK_OFF_MAX_MS = 60_000
"""A store that restarts is back after about a minute. With this bound, the work that waited for it is late by at most
another minute."""

UNDECODABLE_AGAIN_MS = 3_600_000
"""The pause before a record that does not decode is read again. A newer version may have written it before a rollback
of the deployment."""


def back_off_ms(failures: int) -> int:
    """The pause before work that failed `failures` times in a row is retried: it doubles up to a bound."""
    return min(BACK_OFF_MAX_MS, BACK_OFF_FIRST_MS << min(max(failures - 1, 0), 16))


def failures_in_a_row(failures: int, due_ms: int, now_ms: int) -> int:
    """The failures that still count at `now_ms`: 0 if the work has been due for longer than the largest pause.

    In that case an attempt must have succeeded since. So a success does not need a write that resets the count.
    """
    return failures if now_ms - due_ms <= BACK_OFF_MAX_MS else 0

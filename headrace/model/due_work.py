"""When work that failed is tried again: the same rule for every kind of due work."""

from __future__ import annotations

BACK_OFF_FIRST_MS = 10_000
BACK_OFF_MAX_MS = 60_000
"""A store that was away is back after a minute or so: what waited for it is late by as much again at most."""

UNDECODABLE_AGAIN_MS = 3_600_000
"""When a record that does not decode is read again: it may be of a newer version that was rolled back for a while."""


def back_off_ms(failures: int) -> int:
    """How long to leave work alone that has failed `failures` times in a row: longer each time, up to a bound."""
    return min(BACK_OFF_MAX_MS, BACK_OFF_FIRST_MS << min(max(failures - 1, 0), 16))


def failures_in_a_row(failures: int, due_ms: int, now_ms: int) -> int:
    """The failures that still count at `now_ms`: none, when the work was due for so long that it must have succeeded.

    So success needs no write.
    """
    return failures if now_ms - due_ms <= BACK_OFF_MAX_MS else 0

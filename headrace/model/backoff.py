"""Back-off: the pause before an operation that failed, or a piece of due work, is retried."""

from __future__ import annotations

from typing import Final, TypeVar

from headrace.model.routing import container_of_hash_key

# Back-off: the pause before an operation that failed is retried.
#
# The pause doubles with each consecutive failure, up to a bound. Jitter keeps callers that failed together from
# retrying together. The functions work in any unit of time.

Duration = TypeVar("Duration", int, float)

_DOUBLINGS_MAX: Final = 16
"""Bounds the power of two. Every bound in use is reached with fewer doublings."""


def doubled_pause(failures: int, first: Duration, most: Duration) -> Duration:
    """The pause after this number of consecutive failures: `first` after one failure, and at most `most`."""
    return min(first * (1 << min(max(failures - 1, 0), _DOUBLINGS_MAX)), most)


def full_jitter(pause: float, fraction: float) -> float:
    """A pause between 0 and `pause`, for callers that conflict with each other. `fraction` is uniform in [0, 1)."""
    return fraction * pause


def half_jitter(pause: float, fraction: float) -> float:
    """A pause between half of `pause` and all of it, for callers that wait for something else. `fraction` as above."""
    return pause * (0.5 + fraction / 2)


# The pauses before failed work is retried: one rule for all kinds of due work.

# Buckets: the parts into which streams are divided for periodic tasks.


def bucket_of_stream(scoped_name: str, bucket_count: int) -> int:
    """The bucket, 0-based, of `scope/stream`. It depends only on the name and on the number of buckets."""
    return container_of_hash_key(scoped_name, bucket_count)


BACKOFF_FIRST_MS = 10_000
BACKOFF_MAX_MS = 60_000
"""A store that restarts is back after about a minute. With this bound, the work that waited for it is late by at most
another minute."""

UNDECODABLE_AGAIN_MS = 3_600_000
"""The pause before a record that does not decode is read again. A newer version may have written it before a rollback
of the deployment."""


def backoff_ms(failures: int) -> int:
    """The pause before work that failed `failures` times in a row is retried."""
    return doubled_pause(failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS)


def failures_in_a_row(failures: int, due_ms: int, now_ms: int) -> int:
    """The failures that still count at `now_ms`: 0 if the work has been due for longer than the largest pause.

    In that case an attempt must have succeeded since. So a success does not need a write that resets the count.
    """
    return failures if now_ms - due_ms <= BACKOFF_MAX_MS else 0

"""The pauses before failed work is retried: one rule for all kinds of due work."""

from __future__ import annotations

from headrace.model.backoff import doubled_pause
from headrace.model.routing import container_of_hash_key

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

"""The lease on a bucket: a tick that overlaps a slow one does nothing. Its record also stores where to continue.

The lease only avoids duplicate work. A process that stalls may still write after its lease has expired, so each write
under the lease must be conditional too. A tick takes the lease only if it has found due work; an idle bucket costs no
write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.metadata.bucket_lease import BucketLease, find_bucket_lease, write_bucket_lease
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError

LEASE_MS = 75_000
"""Longer than the time limit of the function that runs ticks. After a crash a bucket waits for the lease to expire."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a tick begins: after `position` in the index. `crashes` counts the last ticks that did not finish.

    That many entries are processed last. Otherwise an entry that kills the process would do so in each tick, before the
    others have their turn.
    """

    position: str
    crashes: int


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a tick: whether there is more to do at once, and where the next tick begins."""

    more: bool
    position: str = ""


def under_lease(store: MetadataStore, clock: Clock, kind: str, bucket: int, work: Callable[[Turn], Done]) -> bool:
    """Run `work` under the lease; return whether it left more to do. Returns False if another tick has the lease.

    Costs one read and two writes in addition to those of `work`. An error of `work` releases the lease and propagates.
    """
    taken = _take(store, clock, kind, bucket)
    if taken is None:
        return False
    turn, version = taken
    try:
        done = work(turn)
    except HeadraceError:
        _give_back(store, kind, bucket, version, turn.position)
        raise
    _give_back(store, kind, bucket, version, done.position)
    return done.more


def _take(store: MetadataStore, clock: Clock, kind: str, bucket: int) -> tuple[Turn, int] | None:
    """The turn and the version of the lease that was taken; None if another tick has it."""
    before, version = find_bucket_lease(store, kind, bucket)
    now_ms = clock.now_ms()
    if before.until_ms > now_ms:
        return None
    crashes = before.crashes + 1 if before.until_ms else 0
    lease = BucketLease(now_ms + LEASE_MS, before.position, crashes)
    try:
        store.write(write_bucket_lease(kind, bucket, lease, version))
    except WriteConflictError:
        return None
    return Turn(before.position, crashes), 0 if version is None else version + 1


def _give_back(store: MetadataStore, kind: str, bucket: int, version: int, position: str) -> None:
    try:
        store.write(write_bucket_lease(kind, bucket, BucketLease(0, position), version))
    except WriteConflictError:
        return  # The lease expired, and another tick has taken it. That tick releases it.

"""The lease on a bucket: a tick that overlaps a slow one does nothing. Its record also stores where to continue.

The lease only avoids duplicate work. A process that stalls may still write after its lease has expired, so each write
under the lease must be conditional too. A tick takes the lease only if it has found due work; an idle bucket costs no
write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.metadata.bucket_lease import BucketLease, bucket_lease_body, bucket_lease_key, decode_bucket_lease
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Create, Key, MetadataStore, Replace, WriteConflictError

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
    key = bucket_lease_key(kind, bucket)
    taken = _take(store, clock, key)
    if taken is None:
        return False
    turn, version = taken
    try:
        done = work(turn)
    except HeadraceError:
        _release(store, key, version, turn.position)
        raise
    _release(store, key, version, done.position)
    return done.more


def _take(store: MetadataStore, clock: Clock, key: Key) -> tuple[Turn, int] | None:
    """Take the lease; return the turn and the version of the lease, or None if another tick has it."""
    found = store.get(key)
    now_ms = clock.now_ms()
    before = BucketLease(0) if found is None else decode_bucket_lease(found.body)
    if before.until_ms > now_ms:
        return None
    crashes = before.crashes + 1 if before.until_ms else 0
    body = bucket_lease_body(BucketLease(now_ms + LEASE_MS, before.position, crashes))
    try:
        store.write(Create(key, body) if found is None else Replace(key, body, found.version))
    except WriteConflictError:
        return None
    return Turn(before.position, crashes), 0 if found is None else found.version + 1


def _release(store: MetadataStore, key: Key, version: int, position: str) -> None:
    try:
        store.write(Replace(key, bucket_lease_body(BucketLease(0, position)), version))
    except WriteConflictError:
        return  # The lease expired, and another tick has taken it. That tick releases it.

"""A lease on a bucket, so that a tick which overlaps a slow one does nothing, and the place where the next one goes on.

It saves double work, nothing more: a worker that stalls may outlive its lease, so whatever is written under one is
conditional all the same. A tick takes it only when it has found due work; an idle bucket costs no write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.codec.records.bucket_lease_record import BucketLease, bucket_lease_body, bucket_lease_of_body
from headrace.metadata import keys
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Create, Key, MetadataStore, Replace, WriteConflictError

LEASE_MS = 75_000
"""Longer than the function may run that works on ticks; after a crash the bucket rests until the lease is over."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a tick begins: behind `position` in the index, with the entry `crashes` places behind the first.

    A tick that kills its process would do so again and again with the same entry, before it comes to the others.
    """

    position: str
    crashes: int


@dataclass(frozen=True, slots=True)
class Done:
    """What a tick leaves over: whether there is more to do at once, and from where the next one goes on."""

    more: bool
    position: str = ""


def under_lease(store: MetadataStore, clock: Clock, kind: str, bucket: int, work: Callable[[Turn], Done]) -> bool:
    """Whether `work`, done while no other tick of this kind works on the bucket, left more; False if another one does.

    One read and two writes, in addition to what `work` does. An error of `work` gives the lease back, and is raised.
    """
    key = keys.bucket_lease_key(kind, bucket)
    taken = _take(store, clock, key)
    if taken is None:
        return False
    turn, version = taken
    try:
        done = work(turn)
    except HeadraceError:
        _give_back(store, key, version, turn.position)
        raise
    _give_back(store, key, version, done.position)
    return done.more


def _take(store: MetadataStore, clock: Clock, key: Key) -> tuple[Turn, int] | None:
    """The turn and the version of the lease that was taken; None if another tick has it."""
    found = store.get(key)
    now_ms = clock.now_ms()
    before = BucketLease(0) if found is None else bucket_lease_of_body(found.body)
    if before.until_ms > now_ms:
        return None
    crashes = before.crashes + 1 if before.until_ms else 0
    body = bucket_lease_body(BucketLease(now_ms + LEASE_MS, before.position, crashes))
    try:
        store.write(Create(key, body) if found is None else Replace(key, body, found.version))
    except WriteConflictError:
        return None
    return Turn(before.position, crashes), 0 if found is None else found.version + 1


def _give_back(store: MetadataStore, key: Key, version: int, position: str) -> None:
    try:
        store.write(Replace(key, bucket_lease_body(BucketLease(0, position)), version))
    except WriteConflictError:
        return  # The lease ran out and another tick has it now, which gives it back itself.

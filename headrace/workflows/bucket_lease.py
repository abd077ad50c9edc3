"""A lease on a bucket, so that a tick which overlaps a slow one does nothing.

It saves double work, nothing more: a worker that stalls may outlive its lease, so whatever is written under one is
conditional all the same. A tick takes it only when it has found due work; an idle bucket costs no write.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.codec.records.bucket_lease_record import bucket_lease_body, bucket_lease_of_body
from headrace.metadata import keys
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Create, Key, MetadataStore, Replace, WriteConflictError

LEASE_MS = 75_000
"""Longer than the function may run that works on ticks; after a crash the bucket rests until the lease is over."""


def under_lease(store: MetadataStore, clock: Clock, kind: str, bucket: int, work: Callable[[], bool]) -> bool:
    """What `work` returns, done while no other tick of this kind works on the bucket; False if one does.

    One read and two writes, beside what `work` does. An error of `work` gives the lease back, and is raised.
    """
    key = keys.bucket_lease_key(kind, bucket)
    version = _take(store, clock, key)
    if version is None:
        return False
    try:
        more = work()
    except HeadraceError:
        _give_back(store, key, version)
        raise
    _give_back(store, key, version)
    return more


def _take(store: MetadataStore, clock: Clock, key: Key) -> int | None:
    """The version of the lease that was taken; None if somebody else has it."""
    found = store.get(key)
    now_ms = clock.now_ms()
    if found is not None and bucket_lease_of_body(found.body) > now_ms:
        return None
    body = bucket_lease_body(now_ms + LEASE_MS)
    try:
        store.write(Create(key, body) if found is None else Replace(key, body, found.version))
    except WriteConflictError:
        return None
    return 0 if found is None else found.version + 1


def _give_back(store: MetadataStore, key: Key, version: int) -> None:
    try:
        store.write(Replace(key, bucket_lease_body(0), version))
    except WriteConflictError:
        return  # The lease ran out and somebody else has it now: it is theirs to give back.

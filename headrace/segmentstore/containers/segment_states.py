"""The three states of a segment: what was accepted, what of it is durable, and what of it tier 2 has.

Each state has one owner, and only the owner changes it. All other code reads. `Segment` composes the three, and has
the invariants between them.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.codec.container_snapshots import NO_IDS, SegmentSnapshot

Waiter = Callable[[], None]


class AcceptedState:
    """What the container has accepted, which the next operation is checked against. It may still be lost.

    Before code replies to a client with a field of this state, it waits until the log is durable
    (`OperationLog.durable`).

    Owner: `ContainerMetadata`, which applies each operation when it is logged or replayed.

    `removed`: the segment object does not represent the segment any more, and code that keeps it must look the name up
    again. The segment was deleted, merged, or evicted (`evicted`), and may have been activated as another object.

    `client_attributes`, `forgot_writers`, `whole_length` and `may_lack_bytes` are as in `SegmentSnapshot`.
    """

    __slots__ = (
        "attributes",
        "client_attributes",
        "evicted",
        "forgot_writers",
        "last_modified_ms",
        "length",
        "may_lack_bytes",
        "removed",
        "sealed",
        "start_offset",
        "whole_length",
    )

    def __init__(self, attributes: dict[int, int], now_ms: int) -> None:
        self.attributes = attributes
        self.client_attributes: set[int] | frozenset[int] = NO_IDS
        self.forgot_writers = False
        self.last_modified_ms = now_ms
        self.start_offset = 0
        self.length = 0
        self.sealed = False
        self.removed = False
        self.evicted = False
        self.whole_length: int | None = None
        self.may_lack_bytes = False

    @classmethod
    def restored(cls, snapshot: SegmentSnapshot) -> AcceptedState:
        state = cls(dict(snapshot.attributes), snapshot.last_modified_ms)
        state.start_offset = snapshot.start_offset
        state.length = snapshot.length
        state.sealed = snapshot.sealed
        state.client_attributes = snapshot.client_attributes
        state.forgot_writers = snapshot.forgot_writers
        state.whole_length = snapshot.whole_length
        state.may_lack_bytes = snapshot.may_lack_bytes
        return state


class DurableState:
    """What is durable in the log. Readers see only this. Its next change calls the `waiters`.

    Owner: `settlements`, whose functions the log calls when operations are durable.
    """

    __slots__ = ("length", "sealed", "start_offset", "waiters")

    def __init__(self, start_offset: int = 0, length: int = 0, *, sealed: bool = False) -> None:
        self.start_offset = start_offset
        self.length = length
        self.sealed = sealed
        self.waiters: dict[Waiter, None] | tuple[()] = ()  # most segments never have any

    def add_waiter(self, waiter: Waiter) -> None:
        """Call `waiter` once, at the next change of this state."""
        if isinstance(self.waiters, dict):
            self.waiters[waiter] = None
        else:
            self.waiters = {waiter: None}

    def remove_waiter(self, waiter: Waiter) -> None:
        """Do not call `waiter` any more. Does nothing if it was called already."""
        if isinstance(self.waiters, dict):
            self.waiters.pop(waiter, None)
            self.waiters = self.waiters or ()

    def wake_waiters(self) -> None:
        """Call every callback that waits for a change of this state."""
        waiters, self.waiters = self.waiters, ()
        for waiter in waiters:
            waiter()


class TieredState:
    """What tier 2 has: the chunk directory has the segment up to `length`, without the runs before `trimmed_offset`.

    `told_start` is the start offset in the newest snapshot in tier 2.

    Owner: the container's `DirectoryUpkeep`. Before it exists, the recovery replays how far it had come.
    """

    __slots__ = ("length", "told_start", "trimmed_offset")

    def __init__(self, length: int = 0, trimmed_offset: int = 0, told_start: int = 0) -> None:
        self.length = length
        self.trimmed_offset = trimmed_offset
        self.told_start = told_start

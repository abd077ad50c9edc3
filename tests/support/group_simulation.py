"""Readers of a group that share its segments over hours of a simulated clock: ours, and those of Pravega's Java client.

Ours decide with `SegmentTurns`. Those of the Java client follow the times and counts of Pravega 0.13: a reader looks at
the state each 3 s, acts on what it saw then, takes at least one segment that waits, and releases one after a
checkpoint. All of them act when their application asks for the next event.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

from group_states import after, group

from headrace.model.group_balance import SegmentTurns
from headrace.model.group_state import GroupState
from headrace.model.group_updates import AcquireSegment, AddReader, GroupUpdate, NoteProgress, ReleaseSegment
from headrace.model.names import StreamSegmentName

WRITE_S = 0.003
"""What an update takes, and until a reader that follows the state has seen it."""

LEASE_MS = 30_000
TIME_UNIT_S = 1.0


class GroupSimulation:
    """A group and its readers. `waits_s` is for how long segments had no owner, `moves` how often one got an owner."""

    def __init__(self, segments: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.state = group(segments)
        self.moves = 0
        self.waits_s: list[float] = []
        self._free_since_s = dict.fromkeys(self.state.unassigned, 0.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._listeners: list[Callable[[], None]] = []

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), act))

    def follow(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def write(self, *updates: GroupUpdate) -> None:
        self.state = after(self.state, *updates)
        for segment in self._free_since_s.keys() - self.state.unassigned.keys():
            self.moves += 1
            self.waits_s.append(self.now_s - self._free_since_s.pop(segment))
        for segment in self.state.unassigned:
            self._free_since_s.setdefault(segment, self.now_s)
        for changed in self._listeners:
            changed()

    def acquire(self, reader: str, segments: tuple[StreamSegmentName, ...]) -> None:
        if segments:
            self.write(*(AcquireSegment(reader, name) for name in segments))

    def release(self, reader: str, segments: tuple[StreamSegmentName, ...]) -> None:
        if segments:
            self.write(*(ReleaseSegment(reader, name, 0) for name in segments))

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = until_s
        self.waits_s += [until_s - since_s for since_s in self._free_since_s.values()]

    @property
    def counts(self) -> list[int]:
        return sorted(len(owned) for owned in self.state.assigned.values())


class OurReader:
    """It takes part when its application asks for an event: every `busy_s` on average, or at once when it waits."""

    def __init__(self, group: GroupSimulation, name: str, busy_s: float) -> None:
        self._group, self._name, self._busy_s = group, name, busy_s
        self._turns = SegmentTurns(name, group.now_s)
        self._calls = 0
        self._waits = False
        group.write(AddReader(name), NoteProgress(name, 0, lease_ms=LEASE_MS))
        group.follow(self._changed)
        self._take_part()

    def _changed(self) -> None:
        if self._waits:
            self._waits = False
            self._call_in(WRITE_S)

    def _call_in(self, delay_s: float) -> None:
        self._calls += 1
        call = self._calls
        self._group.at(delay_s, lambda: self._take_part() if call == self._calls else None)

    def _take_part(self) -> None:
        group, now_s = self._group, self._group.now_s
        self._waits = False
        if surplus := self._turns.to_release(group.state, {}, now_s):
            group.release(self._name, surplus)
            self._turns.released(now_s)
        if taken := self._turns.to_acquire(group.state, now_s):
            group.acquire(self._name, taken)
            self._turns.acquired(group.state, now_s)
        if self._busy_s and group.state.assigned[self._name]:
            self._call_in(group.random.uniform(0, 2 * self._busy_s))
        else:
            self._call_in(self._turns.wait_s(group.state, now_s))
            self._waits = True


class JavaReader:
    """A reader of Pravega's Java client. Without `checkpoint_s` the group has no checkpoints."""

    def __init__(self, group: GroupSimulation, name: str, busy_s: float, checkpoint_s: float | None = None) -> None:
        self._group, self._name, self._busy_s, self._checkpoint_s = group, name, busy_s, checkpoint_s
        group.write(AddReader(name), NoteProgress(name, 0))
        self._seen = group.state
        self._look_at_s = self._acquire_at_s = self._release_at_s = group.now_s
        self._checkpoint_at_s = group.now_s + (checkpoint_s or float("inf"))
        self._call()

    def _call(self) -> None:
        group = self._group
        if group.now_s >= self._look_at_s:
            self._seen, self._look_at_s = group.state, group.now_s + group.state.configuration.group_refresh_ms / 1000
        if group.now_s >= self._checkpoint_at_s:
            self._checkpoint_at_s = group.now_s + (self._checkpoint_s or float("inf"))
            self._release()
        if group.now_s >= self._acquire_at_s:
            if self._seen.unassigned:
                group.acquire(self._name, self._share(group.state))
                self._seen = group.state
            self._wait()
        busy = self._busy_s and group.state.assigned[self._name]
        group.at(group.random.uniform(0, 2 * self._busy_s) if busy else group.random.uniform(0.1, 0.3), self._call)

    def _release(self) -> None:
        owned = self._group.state.assigned[self._name]
        least = min(map(len, self._group.state.assigned.values()))
        if (
            self._group.now_s >= self._release_at_s
            and len(owned) > 1
            and len(owned) > least + max(1, len(self._group.state.unassigned))
        ):
            self._group.release(self._name, (list(owned)[-1],))
            self._seen = self._group.state
            self._wait()

    def _share(self, state: GroupState) -> tuple[StreamSegmentName, ...]:
        waiting, readers = len(state.unassigned), len(state.assigned)
        fair = int(state.segment_count / readers + 0.5) - len(state.assigned[self._name])
        return tuple(state.unassigned)[: max(waiting // readers, min(waiting, fair), 1)]

    def _wait(self) -> None:
        """The reader with the most segments acts last, and releases first."""
        sizes = {reader: len(owned) for reader, owned in self._seen.assigned.items()}
        rank = sorted(sizes, key=lambda reader: -sizes[reader]).index(self._name)
        self._acquire_at_s = self._group.now_s + TIME_UNIT_S * (len(sizes) - rank)
        self._release_at_s = self._group.now_s + TIME_UNIT_S * (1 + rank)

"""Random histories of readers that join a group and die: what they read, by the rules of the shared state."""

from __future__ import annotations

import random
from collections import Counter

from group_states import after, group, segment
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.group_balance import (
    to_acquire,
    to_release,
)
from headrace.model.group_updates import (
    AcquireSegment,
    AddReader,
    BeginCheckpoint,
    ClearCheckpointsBefore,
    CompleteSegment,
    GroupUpdate,
    ReachCheckpoint,
    ReleaseSegment,
    RemoveReader,
)
from headrace.model.names import StreamSegmentName

LENGTH = 3


class History:
    """Readers that work on a stream which is scaled, by the rules of the state. It notes which events each has got."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = group(3)
        self.delivered: Counter[tuple[StreamSegmentName, int]] = Counter()
        self.position: dict[tuple[str, StreamSegmentName], int] = {}
        self.successors: dict[StreamSegmentName, dict[StreamSegmentName, tuple[int, ...]]] = {}
        self.known = {segment(number) for number in range(3)}
        self.predecessors: dict[StreamSegmentName, tuple[StreamSegmentName, ...]] = {}
        self.crashes = 0
        self.joined = 0
        merge = segment(1 << 32 | 3)
        self._replace((segment(0), segment(1)), (merge,))
        self._replace((segment(2),), (segment(1 << 32 | 4), segment(1 << 32 | 5)))
        self._replace((merge, segment(1 << 32 | 4)), (segment(2 << 32 | 6),))

    def _replace(self, old: tuple[StreamSegmentName, ...], new: tuple[StreamSegmentName, ...]) -> None:
        for name in old:
            self.successors[name] = {successor: tuple(before.segment_id for before in old) for successor in new}
        for name in new:
            self.predecessors[name] = old
            self.known.add(name)

    def write(self, *updates: GroupUpdate) -> None:
        self.state = after(self.state, *updates)
        self.check()

    def check(self) -> None:
        """A segment is in one place: with one owner, or waiting for one, or behind its predecessors, or done."""
        places = Counter(dict.fromkeys(self.state.unassigned, 1))
        places.update(list(self.state.future))
        for owned in self.state.assigned.values():
            places.update(list(owned))
        assert max(places.values(), default=0) <= 1
        for name in self.known - set(places):
            done = all(self.delivered[name, event] for event in range(LENGTH))
            hidden = any(
                before in places or before not in self._done(places) for before in self.predecessors.get(name, ())
            )
            assert done or hidden, name

    def _done(self, places: Counter[StreamSegmentName]) -> set[StreamSegmentName]:
        return {
            name for name in self.known - set(places) if all(self.delivered[name, event] for event in range(LENGTH))
        }

    def step(self, *, with_crashes: bool) -> None:
        act = self.random.choice([self.join, self.leave, *[self.read] * 8, self.share, self.checkpoint, self.reach])
        act()
        if with_crashes and self.random.random() < 0.1:
            self.crash()

    def reader(self) -> str | None:
        return self.random.choice(self.state.readers) if self.state.readers else None

    def join(self) -> None:
        if len(self.state.readers) < 4:
            self.joined += 1
            self.write(AddReader(f"r{self.joined}"))

    def leave(self) -> None:
        if (reader := self.reader()) and len(self.state.readers) > 1:
            self.write(
                RemoveReader(reader, {name: self.position[reader, name] for name in self.state.assigned[reader]})
            )

    def crash(self) -> None:
        if reader := self.reader():
            self.crashes += 1
            self.write(RemoveReader(reader))

    def share(self) -> None:
        if reader := self.reader():
            released = to_release(self.state, reader, {})
            self.write(*(ReleaseSegment(reader, name, self.position[reader, name]) for name in released))
            taken = to_acquire(self.state, reader)
            for name in taken:
                for before in self.predecessors.get(name, ()):
                    assert all(self.delivered[before, event] for event in range(LENGTH)), "a successor came too early"
                self.position[reader, name] = self.state.unassigned[name]
            self.write(*(AcquireSegment(reader, name) for name in taken))

    def read(self) -> None:
        reader = self.reader()
        owned = list(self.state.assigned[reader]) if reader else []
        if reader is None or not owned:
            return
        name = self.random.choice(owned)
        at = self.position[reader, name]
        if at < LENGTH:
            self.delivered[name, at] += 1
            self.position[reader, name] = at + 1
        elif self.state.checkpoints.next_of(reader) is None:
            self.write(CompleteSegment(reader, name, self.successors.get(name, {})))

    def checkpoint(self) -> None:
        if not self.state.checkpoints.is_ongoing:
            name = f"c{self.random.random()}"
            self.write(BeginCheckpoint(name), ClearCheckpointsBefore(name))

    def reach(self) -> None:
        reader = self.reader()
        name = self.state.checkpoints.next_of(reader) if reader else None
        if reader is None or name is None:
            return
        owned = self.state.assigned[reader]
        self.write(
            ReachCheckpoint(
                name, reader, {owned_segment: self.position[reader, owned_segment] for owned_segment in owned}
            )
        )
        if (positions := self.state.checkpoints.complete_positions(name)) is not None:
            assert all(
                self.delivered[owned_segment, event]
                for owned_segment, offset in positions.items()
                for event in range(offset)
            )

    def finish(self) -> None:
        self.join()
        for _ in range(5_000):
            if self.state.has_ended:
                return
            self.share()
            self.read()
            self.reach()
        raise AssertionError("the group does not come to the end of the stream")


@given(st.integers(0, 1 << 32), st.integers(0, 120))
def test_every_event_is_read_once_without_a_crash(seed: int, steps: int) -> None:
    history = History(seed)
    for _ in range(steps):
        history.step(with_crashes=False)
    history.finish()
    assert history.delivered == {(name, event): 1 for name in history.known for event in range(LENGTH)}


@given(st.integers(0, 1 << 32), st.integers(0, 120))
def test_no_event_is_lost_in_a_crash(seed: int, steps: int) -> None:
    history = History(seed)
    for _ in range(steps):
        history.step(with_crashes=True)
    history.finish()
    assert set(history.delivered) == {(name, event) for name in history.known for event in range(LENGTH)}
    assert history.crashes or max(history.delivered.values()) == 1

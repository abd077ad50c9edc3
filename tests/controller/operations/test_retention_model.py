"""Streams that grow, scale and are read, under retention: what must stay stays, whatever happens in which order."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from cut_histories import History, Reader
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.controller.ticks.due_work import LEASE_MS
from headrace.model.backoff import bucket_of_stream
from headrace.model.segments import StreamSegment
from headrace.model.stream_configuration import RetentionPolicy, RetentionType
from headrace.model.stream_cuts import CutOrder, PlacedCut, Side, compare_cuts, side_of
from headrace.model.subscribers import lower_bound, upper_bound

PERIOD_MS = 100_000
"""Longer than a lease, so that every tick has its turn also after a crash."""

NAMES = ("a", "b")
INDEX = st.integers(0, 7)
POLICIES = st.builds(
    lambda by_time, least, more: RetentionPolicy(
        RetentionType.LIMITED_TIME_MS if by_time else RetentionType.LIMITED_SIZE_BYTES,
        least * (PERIOD_MS // 50 if by_time else 1),
        None if more is None else (least + more) * (PERIOD_MS // 50 if by_time else 1),
    ),
    st.booleans(),
    st.integers(1, 150),
    st.none() | st.integers(0, 150),
)


def _machine() -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        @initialize(policy=POLICIES, segments=st.integers(1, 3))
        def begin(self, policy: RetentionPolicy, segments: int) -> None:
            self.world = StreamWorld()
            self.world.create(segments=segments, retention=policy)
            self.world.update(segments=1, retention=policy)  # A merge needs a smaller minimum.
            self.policy = policy
            self.history = History.begin(segments)
            self.ticks = RetentionTicks(
                self.world.store,
                self.world.segment_stores,
                self.world.clock,
                self.world.accept_truncation,
                PERIOD_MS,
            )
            self.subscribers = SubscriberService(self.world.store, self.world.clock)
            self.readers: dict[str, Reader] = {}
            self.published: dict[str, PlacedCut] = {}
            self.tails: list[tuple[int, PlacedCut]] = []
            self.head = self._head()

        def append(self, appends: list[tuple[int, int]]) -> None:
            for index, length in appends:
                segment = self.history.active[index % len(self.history.active)]
                self.history.append(index, length)
                self.world.append(segment.segment_id, length)

        @rule(index=INDEX, splits=st.booleans())
        def scale(self, index: int, splits: bool) -> None:
            if splits or len(self.history.active) < 2:
                self.history.split(index)
            else:
                self.history.merge(index)
            self._follow()

        @rule(name=st.sampled_from(NAMES))
        def come_or_go(self, name: str) -> None:
            if name in self.readers:
                self.subscribers.unregister("s", "t", name, 0)
                del self.readers[name], self.published[name]
                return
            self.subscribers.register("s", "t", name, 0)
            offsets = {segment: self.head.cut.offsets[segment.segment_id] for segment in self.head.segments}
            segments = {segment for epoch in self.history.epochs for segment in epoch.segments}
            gone = {segment for segment in segments if side_of(segment, self.head) is Side.BEFORE}
            self.readers[name] = Reader(self.history, offsets, gone)
            self.published[name] = self.head

        def read(self, reads: list[tuple[int, int, int]]) -> None:
            """Reader, segment and bytes of each; what was read is published."""
            names = sorted(self.readers)
            for reader, index, length in reads if names else ():
                self.readers[names[reader % len(names)]].read(index, length)
            for name in names:
                self.published[name] = self.readers[name].cut()
                self.subscribers.update_stream_cut("s", "t", name, 0, self.published[name].cut.offsets)

        @rule(
            appends=st.lists(st.tuples(INDEX, st.integers(1, 60)), max_size=6),
            reads=st.lists(st.tuples(INDEX, INDEX, st.integers(1, 100)), max_size=12),
            crash_at=st.none() | st.integers(0, 20),
            done=st.booleans(),
        )
        def tick(
            self,
            appends: list[tuple[int, int]],
            reads: list[tuple[int, int, int]],
            crash_at: int | None,
            done: bool,
        ) -> None:
            self.append(appends)
            self.read(reads)
            self.tails.append((self.world.clock.now_ms(), self.history.tail()))
            self.world.clock.advance(max(PERIOD_MS, LEASE_MS))
            tick = partial(self.ticks.run, bucket_of_stream("s/t", topology.BUCKET_COUNT))
            if self.world.calls.dies(tick, crash_at, done=done):
                self.world.clock.advance(LEASE_MS)
                tick()
            self.world.clock.advance(1)
            self._sweep()
            self._check_truncation(self._head())

        @invariant()
        def the_head_never_goes_back(self) -> None:
            head = self._head()
            assert compare_cuts(head, self.head) is CutOrder.EQUAL_OR_AFTER
            self.head = head

        def _sweep(self) -> None:
            """What was accepted is done, also if its message was never sent."""
            for bucket in range(topology.BUCKET_COUNT):
                self.world.resend_intents(bucket, 0)
            self.world.drain()

        def _check_truncation(self, head: PlacedCut) -> None:
            if head == self.head:
                return
            kept = self.history.size(self.history.tail()) - self.history.size(head)
            if self.policy.is_by_time:
                old = self._tail_before(self.world.clock.now_ms() - self.policy.minimum)
                assert old is not None, "something goes though nothing is old enough"
                assert compare_cuts(old, head) is CutOrder.EQUAL_OR_AFTER
            else:
                assert kept >= self.policy.minimum
            if self.published and self._loses_unread(head):
                assert self.policy.maximum is not None, "unread events go though there is no maximum"
                assert self._lag() > self.policy.maximum

        def _loses_unread(self, head: PlacedCut) -> bool:
            """Of what was still there: events before the former head were lost to an earlier truncation."""
            unread = [upper_bound([cut, self.head]) for cut in self.published.values()]
            return any(compare_cuts(cut, head) is not CutOrder.EQUAL_OR_AFTER for cut in unread)

        def _lag(self) -> int:
            """What would remain if the stream were truncated where all have read to: bytes, or ms."""
            bound = upper_bound([lower_bound(list(self.published.values())), self.head])
            if not self.policy.is_by_time:
                return self.history.size(self.history.tail()) - self.history.size(bound)
            unread = [at for at, tail in self.tails if compare_cuts(bound, tail) is not CutOrder.EQUAL_OR_AFTER]
            return self.world.clock.now_ms() - min(unread) if unread else 0

        def _tail_before(self, time_ms: int) -> PlacedCut | None:
            return next((tail for at, tail in reversed(self.tails) if at <= time_ms), None)

        def _head(self) -> PlacedCut:
            offsets = self.world.segments.stream_cut("s", "t", "head").offsets
            by_id: dict[int, StreamSegment] = {
                segment.segment_id: segment for epoch in self.history.epochs for segment in epoch.segments
            }
            return self.history.cut({by_id[identifier]: offset for identifier, offset in offsets.items()})

        def _follow(self) -> None:
            """The stream makes the last step of its model."""
            last = self.history.epochs[-1]
            accepted = self.world.streams.scale_stream(
                "s",
                "t",
                [segment.segment_id for segment in last.replaced],
                [segment.key_range for segment in last.created],
            )
            self.world.drain()
            assert accepted.epoch == last.number

        def teardown(self) -> None:
            if hasattr(self, "world"):
                assert self.world.bare_queue.receive() == []

    return Machine


@pytest.mark.hypothesis
def test_what_must_stay_stays():
    run_state_machine_as_test(_machine(), settings=settings(max_examples=40, stateful_step_count=30, deadline=None))


@pytest.mark.parametrize("by_time", [True, False])
def test_the_model_can_fail(by_time: bool, monkeypatch: pytest.MonkeyPatch):
    """A minimum that is forgotten is found out."""
    monkeypatch.setattr(RetentionPolicy, "minimum", property(lambda _policy: 1))
    machine: Any = _machine()()
    machine.begin(RetentionPolicy.by_time(10 * PERIOD_MS) if by_time else RetentionPolicy.by_size(100), 1)
    for _ in range(3):
        machine.tick([(0, 20)], [], None, False)
    monkeypatch.undo()
    machine.head = machine.history.cut(dict.fromkeys(machine.history.epochs[0].segments, 0))
    with pytest.raises(AssertionError):
        machine._check_truncation(machine._head())

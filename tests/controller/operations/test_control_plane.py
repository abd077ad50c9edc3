"""Random users on a control plane whose messages get lost, double and stop half way: the promises hold all the time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stream_world import StreamWorld, ranges

from headrace import topology
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    IllegalStateError,
    NotFoundError,
    UnavailableError,
)
from headrace.model.segments import covers_key_space_once
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream

REFUSALS = (AlreadyExistsError, ConflictError, IllegalStateError, NotFoundError)
STREAMS = ("t", "u")
STREAM = st.sampled_from(STREAMS)
CALL = st.integers(0, 12)


def _machine() -> type[RuleBasedStateMachine]:
    class ControlPlane(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = StreamWorld()
            self.bodies: list[dict[str, Any]] = []

        @initialize(streams=st.sets(STREAM), segments=st.integers(1, 4))
        def begin(self, streams: set[str], segments: int) -> None:
            for stream in sorted(streams):
                self.create(stream, segments, False)
                self.deliver(None, False)

        @rule(stream=STREAM, segments=st.integers(1, 4), is_down=st.booleans())
        def create(self, stream: str, segments: int, is_down: bool) -> None:
            configuration = StreamConfiguration(ScalingPolicy.fixed(segments), tags=("tag",))
            self._ask(is_down, lambda: self.world.streams.create_stream("s", stream, configuration))

        @rule(stream=STREAM, data=st.data(), is_down=st.booleans())
        def scale(self, stream: str, data: st.DataObject, is_down: bool) -> None:
            stored = self.world.records.find("s", stream)
            if stored is None or stored.stream.state is StreamState.SEALED:
                return
            segment = data.draw(st.sampled_from(stored.stream.epoch.segments))
            low, high = segment.key_range.low, segment.key_range.high
            bounds = [low, (low + high) / 2, high] if data.draw(st.booleans()) else [low, high]
            new = ranges(*bounds)
            self._ask(is_down, lambda: self.world.streams.scale_stream("s", stream, [segment.segment_id], new))

        @rule(stream=STREAM, data=st.data(), crash_at=CALL, done=st.booleans())
        def scale_in_part(self, stream: str, data: st.DataObject, crash_at: int, done: bool) -> None:
            self.scale(stream, data, False)
            self.deliver(crash_at, done)

        @rule(stream=STREAM, is_down=st.booleans())
        def seal(self, stream: str, is_down: bool) -> None:
            self._ask(is_down, lambda: self.world.streams.seal_stream("s", stream))

        @rule(stream=STREAM, is_down=st.booleans())
        def delete(self, stream: str, is_down: bool) -> None:
            self._ask(is_down, lambda: self.world.streams.delete_stream("s", stream))

        @rule()
        def delete_scope(self) -> None:
            self._ask(False, lambda: self.world.scopes.delete_scope("s"))

        @rule()
        def create_scope(self) -> None:
            self._ask(False, lambda: self.world.scopes.create_scope("s"))

        @precondition(lambda self: len(self.world.bare_queue) > 0)
        @rule(crash_at=st.none() | CALL, done=st.booleans())
        def deliver(self, crash_at: int | None, done: bool) -> None:
            for message in self.world.bare_queue.receive(1):
                self.bodies.append(message.body)
                if self.world.calls.dies(partial(self.world.processor.process, message.body), crash_at, done=done):
                    self.world.bare_queue.release(message.receipt)
                else:
                    self.world.bare_queue.acknowledge(message.receipt)

        @precondition(lambda self: self.bodies)
        @rule(data=st.data())
        def deliver_an_old_message(self, data: st.DataObject) -> None:
            self.world.processor.process(data.draw(st.sampled_from(self.bodies)))

        @rule()
        def sweep(self) -> None:
            self.world.clock.advance(60_000)
            for bucket in range(topology.BUCKET_COUNT):
                self.world.resend_intents(bucket)

        @invariant()
        def streams_are_whole(self) -> None:
            for stream in STREAMS:
                stored = self.world.records.find("s", stream)
                if stored is not None:
                    assert self.world.scopes.get_scope("s") == "s"
                    self._check(stored.stream)

        @invariant()
        def lists_agree_with_streams(self) -> None:
            streams = {stream for stream in STREAMS if self.world.records.find("s", stream)}
            records = self.world.everything()
            assert {sort for partition, sort in records if partition == "scope/s"} == streams

        def teardown(self) -> None:
            """When the trouble is over and the sweeper has run, nothing is pending and nothing is left behind."""
            self.sweep()
            self.world.drain()
            records = self.world.everything()
            assert [partition for partition, _ in records if partition.startswith("requests/")] == []
            kept = [stored for stored in (self.world.records.find("s", stream) for stream in STREAMS) if stored]
            assert all(stored.stream.pending is None for stored in kept)
            assert len([partition for partition, _ in records if partition.startswith("tag/")]) == len(kept)
            owned = tuple(f"s/{stored.stream.name}/" for stored in kept)
            assert [
                name for name in self.world.bare_segment_stores.names() if not name.startswith(owned or ("-",))
            ] == []

        def _ask(self, is_down: bool, operation: Callable[[], object]) -> None:
            self.world.queue.is_down = is_down
            with contextlib.suppress(*REFUSALS):
                operation()
            self.world.queue.is_down = False

        def _check(self, stream: Stream) -> None:
            segments = stream.epoch.segments
            assert covers_key_space_once([segment.key_range for segment in segments])
            if stream.state is StreamState.CREATING or stream.is_deleting:
                return
            service = self.world.segments
            for segment in segments:
                name = f"s/{stream.name}/{segment.number}.#epoch.{segment.epoch}"
                is_sealed = self.world.bare_segment_stores.segment_info(name).is_sealed
                following = service.successors("s", stream.name, segment.segment_id)
                if is_sealed and stream.state is StreamState.SCALING:
                    assert following.segments, "a writer that finds its segment sealed must learn where to go"
                for successor in following.segments:
                    before = service.predecessors("s", stream.name, successor.segment_id)
                    assert tuple(old.segment_id for old in before) == successor.predecessors
                    assert segment.segment_id in successor.predecessors
                    self.world.bare_segment_stores.segment_info(successor.name)
            try:
                between = service.between("s", stream.name, None, None)
            except UnavailableError:
                assert stream.state is StreamState.SCALING
            else:
                assert {segment_range.segment_id for segment_range in between.ranges} >= {
                    segment.segment_id for segment in segments
                }

    return ControlPlane


@pytest.mark.hypothesis
@pytest.mark.parametrize("steps", [15, 60])
def test_the_control_plane_keeps_its_promises(steps: int):
    run_state_machine_as_test(_machine(), settings=settings(max_examples=60, stateful_step_count=steps, deadline=None))

"""Random scales, truncations, updates and deaths of processors, against a model that only adds up bytes and tags."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stream_world import StreamWorld

from headrace.model.errors import IllegalStateError, InvalidRequestError, SealedError, TruncatedError
from headrace.model.segments import KeyRange, covers_key_space_once
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState

TAGS = ("a", "b", "c")
SEGMENTS_MAX = 6


def _machine() -> type[RuleBasedStateMachine]:
    class StreamMachine(RuleBasedStateMachine):
        """`deaths` tells at which call of a request's processor it dies before somebody else takes over."""

        @initialize(segments=st.integers(1, 3))
        def start(self, segments: int) -> None:
            self.world = StreamWorld()
            self.world.create(segments=segments, tags=("a",))
            self.tags: set[str] = {"a"}
            self.segments_min = segments
            self.version = 0
            self.appended = 0
            self.heads: list[tuple[dict[int, int], int]] = []
            """The heads of before, each with the bytes that were truncated then."""
            self.sealed = False

        def _finish(self, death: int) -> None:
            """Do what was accepted; the first processor dies at this call, if it makes so many."""
            for message in self.world.bare_queue.receive():
                process = partial(self.world.requests.process, message.body)
                if self.world.calls.dies(process, death, done=bool(death % 2)):
                    process()
                self.world.bare_queue.acknowledge(message.receipt)

        def _truncated_bytes(self) -> int:
            truncation = self.world.records.get_with_truncation("s", "t")[1]
            return truncation.size_bytes if truncation else 0

        def _active(self) -> list[Any]:
            return list(self.world.segments.segments_at_tail("s", "t").segments)

        @precondition(lambda self: not self.sealed)
        @rule(data=st.data(), length=st.integers(1, 5))
        def append(self, data: st.DataObject, length: int) -> None:
            segment = data.draw(st.sampled_from(self._active()))
            self.world.append(segment.segment_id, length)
            self.appended += length

        @precondition(lambda self: not self.sealed)
        @rule(data=st.data(), death=st.integers(0, 25))
        def scale(self, data: st.DataObject, death: int) -> None:
            active = self._active()
            chosen = data.draw(st.integers(0, len(active) - 1))
            if len(active) < SEGMENTS_MAX and data.draw(st.booleans()):
                old = active[chosen]
                middle = (old.key_range.low + old.key_range.high) / 2
                new = [KeyRange(old.key_range.low, middle), KeyRange(middle, old.key_range.high)]
                self.world.streams.scale_stream("s", "t", [old.segment_id], new)
            else:
                pair = active[chosen : chosen + 2]
                whole = KeyRange(pair[0].key_range.low, pair[-1].key_range.high)
                identifiers = [segment.segment_id for segment in pair]
                if len(active) - len(pair) + 1 < self.segments_min:
                    with pytest.raises(IllegalStateError, match="requires"):
                        self.world.streams.scale_stream("s", "t", identifiers, [whole])
                    return
                self.world.streams.scale_stream("s", "t", identifiers, [whole])
            self._finish(death)

        @precondition(lambda self: not self.sealed)
        @rule(tags=st.sets(st.sampled_from(TAGS)), death=st.integers(0, 25))
        def update(self, tags: set[str], death: int) -> None:
            policy = ScalingPolicy.by_event_rate(self.version + 1, 2, 1)
            self.world.streams.update_stream("s", "t", StreamConfiguration(policy, tags=tuple(tags)))
            self._finish(death)
            self.tags, self.version, self.segments_min = tags, self.version + 1, 1

        @rule(data=st.data(), at=st.sampled_from(["head", "tail", "between"]), death=st.integers(0, 25))
        def truncate(self, data: st.DataObject, at: str, death: int) -> None:
            cut = dict(self.world.segments.stream_cut("s", "t", "head" if at == "head" else "tail").offsets)
            if at == "between":
                cut = {identifier: data.draw(st.integers(0, offset + 1)) for identifier, offset in cut.items()}
            valid = self.world.cuts.is_valid("s", "t", cut)
            try:
                self.world.cuts.check_reached("s", "t", cut)
                self.world.streams.truncate_stream("s", "t", cut)
            except SealedError:
                assert self.sealed
                return
            except (InvalidRequestError, TruncatedError):
                assert not valid
                return
            assert valid
            self._finish(death)
            assert self.world.segments.stream_cut("s", "t", "head").offsets == cut
            self.heads.append((cut, self._truncated_bytes()))

        @precondition(lambda self: not self.sealed)
        @rule(data=st.data(), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3), death=st.integers(0, 25))
        def grow_and_truncate(self, data: st.DataObject, lengths: list[int], death: int) -> None:
            for length in lengths:
                self.append(data, length)
            self.scale(data, death)
            self.truncate(data, "between", death)

        @precondition(lambda self: not self.sealed and len(self.heads) > 1)
        @rule(death=st.integers(0, 25))
        def seal(self, death: int) -> None:
            self.world.streams.seal_stream("s", "t")
            self._finish(death)
            self.sealed = True

        @precondition(lambda self: bool(self.heads))
        @rule()
        def go_back(self) -> None:
            """A head that was left behind is a place to read from only if no byte after it was truncated."""
            cut, truncated_before = self.heads[0]
            assert self.world.cuts.is_valid("s", "t", cut) == (self._truncated_bytes() == truncated_before)

        @invariant()
        def every_byte_is_kept_or_counted(self) -> None:
            assert self.world.cuts.distance_bytes("s", "t", None, None) + self._truncated_bytes() == self.appended

        @invariant()
        def exactly_the_segments_that_can_be_read_exist(self) -> None:
            named = {segment_range.name for segment_range in self.world.segments.between("s", "t", None, None).ranges}
            assert {name for name in self.world.bare_segment_stores.names() if name.startswith("s/t/")} == named
            head = self.world.segments.segments_at_head("s", "t").segments
            assert covers_key_space_once([segment.key_range for segment in head])

        @invariant()
        def the_configuration_is_the_last_one(self) -> None:
            view = self.world.streams.get_stream("s", "t")
            assert view.state is (StreamState.SEALED if self.sealed else StreamState.ACTIVE)
            assert (set(view.configuration.tags), view.configuration_version) == (self.tags, self.version)
            indexed = {tag for tag in TAGS if self.world.streams.list_streams("s", 9, tag=tag).items}
            assert indexed == self.tags
            entries = {partition for partition, _ in self.world.everything() if partition.startswith("tag/")}
            assert entries == {f"tag/s/{tag}" for tag in self.tags}

        @invariant()
        def neighbours_agree(self) -> None:
            ranges = self.world.segments.between("s", "t", None, None).ranges
            for segment_range in ranges:
                identifier = segment_range.segment_id
                segments = self.world.segments.successors("s", "t", identifier).segments
                for follower in segments:
                    before = self.world.segments.predecessors("s", "t", follower.segment_id)
                    assert identifier in {other.segment_id for other in before}

    return StreamMachine


@pytest.fixture
def machine() -> type[RuleBasedStateMachine]:
    return _machine()


@pytest.mark.hypothesis
def test_streams_under_random_operations(machine: type[RuleBasedStateMachine]):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )

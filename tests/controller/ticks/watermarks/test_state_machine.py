"""Notes, scales, ticks and crashes in any order: watermarks never go back, and cover the key space."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from watermark_world import SILENT_MS, fresh_marks

from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.segments import covers_key_space_once
from headrace.model.watermarks import is_at_or_behind


def _machine() -> type[RuleBasedStateMachine]:
    class Watermarks(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.marks = fresh_marks()
            self.time: dict[str, int] = {}
            self.offset = 0

        @rule(writer=st.sampled_from("abc"), step=st.integers(0, 3), data=st.data())
        def note(self, writer: str, step: int, data: st.DataObject) -> None:
            time = self.time.get(writer, 0) + step
            self.offset += 1
            known = data.draw(st.lists(st.sampled_from(self.marks.world.tail_ids()), min_size=1, unique=True))
            try:
                self.marks.note(writer, time, dict.fromkeys(known, self.offset))
            except InvalidRequestError:
                return
            self.time[writer] = time

        @rule(writer=st.sampled_from("abc"))
        def remove(self, writer: str) -> None:
            try:
                self.marks.service.remove_writer("s", "t", writer)
            except NotFoundError:
                self.time.pop(writer, None)

        @rule(data=st.data())
        def scale(self, data: st.DataObject) -> None:
            segments = self.marks.world.records.get("s", "t").stream.epoch.segments
            segment = data.draw(st.sampled_from(segments))
            low, high = segment.key_range.low, segment.key_range.high
            if high - low > 0.05:
                self.marks.world.scale([segment.segment_id], [low, (low + high) / 2, high])

        @rule(wait_ms=st.sampled_from([1, 10_000, SILENT_MS]))
        def tick(self, wait_ms: int) -> None:
            self.marks.tick(after_ms=wait_ms)

        @rule(position=st.integers(0, 12), done=st.booleans())
        def tick_that_dies(self, position: int, done: bool) -> None:
            self.marks.world.calls.dies(self.marks.tick_after_a_crash, position, done=done)

        @invariant()
        def watermarks_are_right(self) -> None:
            found = self.marks.written()
            for watermark in found:
                assert covers_key_space_once([position.segment.key_range for position in watermark.cut])
                assert watermark.lower_time <= watermark.upper_time
            for before, after in pairwise(found):
                assert before.lower_time < after.lower_time
                assert is_at_or_behind(after.cut, before.cut)

    return Watermarks


@pytest.mark.hypothesis
def test_anything_in_any_order():
    run_state_machine_as_test(_machine(), settings=settings(max_examples=40, stateful_step_count=25, deadline=None))

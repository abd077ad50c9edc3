"""Reports of hot and cold segments scale their streams: once, within the limits, whatever comes twice or late."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import Work, after_each_crash, after_each_sleep
from stream_world import StreamWorld

from fuzz.watched_ports import Calls
from headrace.controller.services.auto_scaling import AutoScalingService, ReportOutcome
from headrace.metadata.cold_mark import cold_mark_key
from headrace.model.errors import ConflictError, InvalidRequestError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.rates import ScalingReport
from headrace.model.scaling import COLD_VALID_MS, REPORT_VALID_MS
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState


def _service(world: StreamWorld) -> AutoScalingService:
    return AutoScalingService(world.store, world.streams.acceptance, world.clock)


def _create(world: StreamWorld, segments: int = 4, minimum: int = 1, factor: int = 3) -> None:
    """A stream by rate that starts with `segments` and may shrink to `minimum`."""
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.by_event_rate(100, factor, minimum)))
    world.drain()
    if segments > minimum:
        bounds = [index / segments for index in range(segments + 1)]
        world.scale(world.tail_ids(), bounds)


def _report(world: StreamWorld, identifier: int, kind: str, **more: Any) -> ScalingReport:
    name = segment_name("s", "t", identifier)
    return ScalingReport(name, kind, more.pop("at_ms", world.clock.now_ms()), **more)  # type: ignore[arg-type]


def _handle(world: StreamWorld, identifier: int, kind: str, **more: Any) -> ReportOutcome:
    outcome = _service(world).handle(_report(world, identifier, kind, **more))
    world.drain()
    return outcome


def _ranges(world: StreamWorld) -> list[tuple[float, float]]:
    segments = world.records.get("s", "t").stream.epoch.segments
    return [(segment.key_range.low, segment.key_range.high) for segment in segments]


def _marks(world: StreamWorld) -> list[str]:
    return sorted(sort for _, sort in world.everything() if sort.startswith("cold/"))


def test_a_hot_segment_is_split_at_most_by_the_scale_factor(world: StreamWorld):
    _create(world, 2, minimum=2)
    assert _handle(world, 0, "hot", splits=5) is ReportOutcome.SPLIT
    assert _ranges(world) == [(0.0, 0.5 / 3), (0.5 / 3, 0.5 * 2 / 3), (0.5 * 2 / 3, 0.5), (0.5, 1.0)]
    assert _handle(world, 1, "hot", splits=0) is ReportOutcome.SPLIT
    assert _ranges(world)[3:] == [(0.5, 0.75), (0.75, 1.0)]


def test_cold_neighbours_merge_and_others_wait(world: StreamWorld):
    _create(world, 4)
    first, second, third, fourth = world.tail_ids()
    assert _handle(world, first, "cold") is ReportOutcome.KEPT
    assert _handle(world, third, "cold") is ReportOutcome.KEPT
    assert _handle(world, second, "cold") is ReportOutcome.MERGED
    assert _ranges(world) == [(0.0, 0.75), (0.75, 1.0)]
    assert _handle(world, fourth, "cold") is ReportOutcome.KEPT, "the merged segment is new: nobody knows it as cold"


def test_the_minimum_holds(world: StreamWorld):
    _create(world, 4, minimum=3)
    first, second, third, _ = world.tail_ids()
    _handle(world, first, "cold", silent=True)
    _handle(world, third, "cold", silent=True)
    assert _handle(world, second, "cold", silent=True) is ReportOutcome.MERGED
    assert _ranges(world) == [(0.0, 0.5), (0.5, 0.75), (0.75, 1.0)]
    for identifier in world.tail_ids():
        assert _handle(world, identifier, "cold") is ReportOutcome.KEPT
    assert len(_ranges(world)) == 3


def test_a_cold_mark_expires_unless_the_segment_is_silent(world: StreamWorld):
    _create(world, 4)
    first, second, third, fourth = world.tail_ids()
    _handle(world, first, "cold")
    _handle(world, fourth, "cold", silent=True)
    world.clock.advance(COLD_VALID_MS)
    assert _handle(world, second, "cold") is ReportOutcome.KEPT
    world.clock.advance(100 * COLD_VALID_MS)
    assert _handle(world, third, "cold") is ReportOutcome.MERGED
    assert _ranges(world)[-1] == (0.5, 1.0)


def test_a_hot_report_takes_the_mark_away(world: StreamWorld):
    _create(world, 2, minimum=1)
    first, second = world.tail_ids()
    _handle(world, first, "cold", silent=True)
    world.clock.advance(1)
    stored = world.records.get("s", "t")
    world.streams.scale_stream("s", "t", [second], [*_halves(stored, second)])
    with pytest.raises(ConflictError):
        _service(world).handle(_report(world, first, "hot"))
    assert _marks(world) == [], "even while another operation runs"


def _halves(stored: Any, identifier: int) -> list[Any]:
    whole = stored.stream.epoch.by_id[identifier].key_range
    middle = (whole.low + whole.high) / 2
    return [type(whole)(whole.low, middle), type(whole)(middle, whole.high)]


def test_an_older_report_changes_no_newer_mark(world: StreamWorld):
    _create(world, 2, minimum=1)
    first, _ = world.tail_ids()
    _handle(world, first, "cold", silent=True)
    before = world.everything()
    earlier = world.clock.now_ms() - 5
    assert _handle(world, first, "cold", at_ms=earlier) is ReportOutcome.KEPT
    assert world.everything() == before
    world.clock.advance(5)
    _handle(world, first, "cold")
    key = cold_mark_key("s", "t", first)
    assert world.record(key).body["until"] is not None, "a newer report counts: the segment is silent no more"


def test_marks_of_replaced_segments_go_and_others_stay(world: StreamWorld):
    _create(world, 4)
    first, second, third, fourth = world.tail_ids()
    for identifier in (first, fourth):
        _handle(world, identifier, "cold", silent=True)
    assert _handle(world, second, "cold") is ReportOutcome.MERGED
    assert _marks(world) == [cold_mark_key("s", "t", fourth).sort]
    assert _handle(world, third, "cold") is ReportOutcome.MERGED
    assert _marks(world) == []


def test_more_marks_than_a_transaction_holds_go_too(world: StreamWorld):
    _create(world, 200)
    for identifier in world.tail_ids()[::2]:
        _handle(world, identifier, "cold", silent=True)
    assert len(_marks(world)) == 100
    world.scale(world.tail_ids(), [0.0, 1.0])
    assert _marks(world) == []


@pytest.mark.parametrize("kind", ["hot", "cold"])
def test_what_says_nothing_of_the_present_is_ignored(world: StreamWorld, kind: str):
    _create(world, 4)
    world.create("fixed", 4)
    replaced, active = 0, world.tail_ids()[1]
    world.create("sealed", 1)
    world.seal("sealed")
    before = world.everything()
    now_ms = world.clock.now_ms()
    service = _service(world)
    for name in (
        segment_name("s", "t", replaced),
        segment_name("s", "t", 9 << 32 | 77),
        segment_name("s", "none", 0),
        segment_name("s", "fixed", 1),
        segment_name("s", "sealed", 0),
    ):
        assert service.handle(ScalingReport(name, kind, now_ms, splits=2)) is ReportOutcome.IGNORED  # type: ignore[arg-type]
    assert _handle(world, active, kind, at_ms=now_ms - REPORT_VALID_MS - 1) is ReportOutcome.IGNORED
    assert world.everything() == before


@pytest.mark.parametrize("name", ["", "s", "s/t/x", "s/t/0.#epoch.0#transaction." + "0" * 32])
def test_what_is_no_segment_of_a_stream_is_refused(world: StreamWorld, name: str):
    with pytest.raises(InvalidRequestError):
        _service(world).handle(ScalingReport(name, "hot", world.clock.now_ms(), splits=2))


@pytest.mark.parametrize("kind", ["hot", "cold"])
def test_a_busy_stream_has_the_report_come_again(world: StreamWorld, kind: str):
    _create(world, 4)
    first, second, _, fourth = world.tail_ids()
    _handle(world, second, "cold")
    world.streams.scale_stream("s", "t", [fourth], _halves(world.records.get("s", "t"), fourth))
    with pytest.raises(ConflictError) as error:
        _service(world).handle(_report(world, first, kind))
    assert error.value.retry == "now"
    world.drain()
    expected = ReportOutcome.SPLIT if kind == "hot" else ReportOutcome.MERGED
    assert _handle(world, first, kind) is expected


def test_a_report_that_comes_twice_scales_once(world: StreamWorld):
    _create(world, 2, minimum=2)
    report = _report(world, 0, "hot", splits=2)
    service = _service(world)
    assert service.handle(report) is ReportOutcome.SPLIT
    with pytest.raises(ConflictError):
        service.handle(report)
    world.drain()
    assert service.handle(report) is ReportOutcome.IGNORED
    assert len(_ranges(world)) == 3


def test_the_queue_being_down_loses_no_scale(world: StreamWorld):
    _create(world, 2, minimum=2)
    world.queue.is_down = True
    assert _service(world).handle(_report(world, 0, "hot", splits=2)) is ReportOutcome.SPLIT
    assert world.records.get("s", "t").stream.state is StreamState.SCALING, "the sweeper will send what the intent says"


@dataclass
class Reported:
    """A world, and reports of its segments that are under way."""

    world: StreamWorld
    reports: list[ScalingReport]

    @property
    def calls(self) -> Calls:
        return self.world.calls

    def deliver(self, number: int) -> None:
        """As the queue does: again if the stream is busy, and the second time in vain too if it stays so."""
        for _ in range(2):
            with suppress(ConflictError):
                _service(self.world).handle(self.reports[number])
            self.world.drain()

    def ranges(self) -> Any:
        return _ranges(self.world)


def _both_cold() -> Reported:
    world = StreamWorld()
    _create(world, 3)
    first, second, _ = world.tail_ids()
    return Reported(world, [_report(world, identifier, "cold", silent=True) for identifier in (first, second)])


@pytest.mark.parametrize("first", [0, 1], ids=["left-first", "right-first"])
def test_of_two_neighbours_at_the_same_moment_one_sees_the_other(first: int):
    """The other report is worked on at any call of the first one: in the end both are merged."""
    work = Work(_both_cold, lambda reported: reported.deliver(first), Reported.ranges)
    paused = 0
    for position, reported, _ in after_each_sleep(work, lambda reported: reported.deliver(1 - first)):
        paused += 1
        reported.deliver(1 - first)
        assert len(reported.ranges()) == 2, f"paused at call {position}"
    assert paused >= 3


def _two_pairs() -> Reported:
    """Both pairs are cold in a stream that may lose one segment."""
    world = StreamWorld()
    _create(world, 4, minimum=3)
    first, second, third, fourth = world.tail_ids()
    for identifier in (first, fourth):
        _handle(world, identifier, "cold", silent=True)
    return Reported(world, [_report(world, identifier, "cold", silent=True) for identifier in (second, third)])


def test_concurrent_merges_do_not_go_below_the_minimum():
    """The other pair merges at any call of the first one's report."""
    work = Work(_two_pairs, lambda reported: reported.deliver(0), Reported.ranges)
    paused = 0
    for position, reported, _ in after_each_sleep(work, lambda reported: reported.deliver(1)):
        paused += 1
        reported.deliver(1)
        assert len(reported.ranges()) == 3, f"paused at call {position}"
    assert paused >= 3


def _one_report(kind: str) -> Reported:
    world = StreamWorld()
    _create(world, 4)
    first, second, _, _ = world.tail_ids()
    _handle(world, first, "cold")
    return Reported(world, [_report(world, second, kind, splits=3)])


def _come_again(reported: Reported) -> None:
    """The report comes again, and what was accepted is done even if its message was not sent: the sweeper's work."""
    world = reported.world
    stream = world.records.get("s", "t").stream
    if stream.pending is not None and stream.state is StreamState.SCALING and not len(world.bare_queue):
        world.processor.process(
            {"kind": "scale_stream", "scope": "s", "stream": "t", "request": stream.pending.request_id}
        )
    reported.deliver(0)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ["hot", "cold"])
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    undisturbed = _one_report(kind)
    undisturbed.deliver(0)
    work = Work(
        lambda: _one_report(kind),
        lambda reported: _service(reported.world).handle(reported.reports[0]),
        Reported.ranges,
        recover=_come_again,
    )
    crashes = 0
    for position, reported in after_each_crash(work, done=done):
        crashes += 1
        work.go_on(reported)
        assert reported.ranges() == undisturbed.ranges(), f"after a crash at call {position}"
    assert crashes >= 2


def test_a_store_that_does_not_answer_has_the_report_come_again(world: StreamWorld):
    _create(world, 4)
    world.calls.refuse("", UnavailableError("the metadata store does not answer"))
    with pytest.raises(UnavailableError):
        _service(world).handle(_report(world, world.records.get("s", "t").stream.epoch.segments[0].segment_id, "hot"))


STEPS = st.lists(
    st.tuples(st.sampled_from(["hot", "cold", "silent", "wait"]), st.integers(0, 11), st.integers(0, 5)), max_size=25
)


@settings(max_examples=60)
@given(steps=STEPS, minimum=st.integers(1, 4), factor=st.integers(2, 4))
def test_whatever_is_reported_a_stream_stays_within_its_limits(
    steps: list[tuple[str, int, int]], minimum: int, factor: int
):
    world = StreamWorld()
    _create(world, minimum, minimum, factor)
    for kind, index, splits in steps:
        if kind == "wait":
            world.clock.advance(splits * 3 * 60_000)
            continue
        before = world.tail_ids()
        identifier = before[index % len(before)]
        name = "cold" if kind == "silent" else kind
        outcome = _handle(world, identifier, name, splits=splits, silent=kind == "silent")
        ranges = _ranges(world)
        assert [low for low, _ in ranges] == [0.0, *(high for _, high in ranges[:-1])]
        assert ranges[-1][1] == 1.0
        assert len(ranges) >= minimum
        if outcome is ReportOutcome.SPLIT:
            assert 1 <= len(ranges) - len(before) < factor
        if outcome is ReportOutcome.MERGED:
            assert len(before) - len(ranges) in (1, 2)
        if outcome is ReportOutcome.KEPT:
            assert world.tail_ids() == before
        active = set(world.tail_ids())
        assert {int(sort.removeprefix("cold/")) for sort in _marks(world)} <= active

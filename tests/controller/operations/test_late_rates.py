"""A processor that slept before it sent the rate of an update leaves the rate that its stream has by then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interruptions import after_each_sleep, sleep_at, work_on_request
from stream_world import StreamWorld

from headrace.controller.operations.registry import undo_request
from headrace.controller.steps.stream_segments import scale_rate
from headrace.model.errors import UnavailableError
from headrace.model.names import segment_name
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.segment_stores import SegmentScaleRate

OLD, NEWER, NEWEST = (StreamConfiguration(ScalingPolicy.by_event_rate(rate, 2, 2)) for rate in (10, 20, 30))
POLICY = "segment store update_segment_policy"


def _accept_update(world: StreamWorld) -> None:
    world.create()
    world.streams.update_stream("s", "t", OLD)


def _finish(world: StreamWorld) -> None:
    world.process()
    world.acknowledge()


def _update(world: StreamWorld) -> None:
    _finish(world)
    world.streams.update_stream("s", "t", NEWER)
    world.drain()


def _update_twice(world: StreamWorld) -> None:
    _update(world)
    world.streams.update_stream("s", "t", NEWEST)
    world.drain()


def _begin_another(world: StreamWorld) -> None:
    """Its processor has sent the rate, and dies before the update is in force."""
    _finish(world)
    world.streams.update_stream("s", "t", NEWER)
    world.receive()
    assert world.calls.dies(world.process, 5, done=True)
    assert set(_rates(world)) == {scale_rate(NEWER.scaling)}


def _scale(world: StreamWorld) -> None:
    """The late processor finds one segment missing, and the other one active."""
    _update(world)
    world.scale([1], [0.5, 1.0])
    world.truncate({0: 0, world.tail_ids()[1]: 0})


def _roll_back(world: StreamWorld) -> None:
    pending = world.records.get("s", "t").stream.pending
    assert pending is not None
    undo_request(world.bare_store, "s", "t", pending).write()
    world.acknowledge()


def _make_again(world: StreamWorld) -> None:
    _finish(world)
    world.seal()
    world.delete()
    world.create()


def _rates(world: StreamWorld) -> list[SegmentScaleRate]:
    """The rates of the active segments."""
    names = [segment_name("s", "t", identifier) for identifier in world.tail_ids()]
    return [world.bare_segment_stores.creation_settings(name)[0] for name in names]


def _present_rate(world: StreamWorld) -> SegmentScaleRate:
    stream = world.records.get("s", "t").stream
    update = world.records.configuration_update(stream) if stream.pending else None
    return scale_rate((update.after if update else stream.configuration).scaling)


@pytest.mark.parametrize("meanwhile", [_finish, _update, _update_twice, _begin_another, _scale, _make_again])
def test_a_late_rate_is_replaced(meanwhile: Callable[[StreamWorld], None]):
    slept = 0
    for position, world, _ in after_each_sleep(work_on_request(_accept_update, _rates), meanwhile):
        slept += 1
        assert set(_rates(world)) == {_present_rate(world)}, f"asleep at call {position}"
    assert slept >= 8


def test_a_rate_of_an_update_that_was_rolled_back_is_replaced():
    """It sleeps at its calls until it has sent the rate."""
    work = work_on_request(_accept_update, _rates)
    for position in range(5):
        world = work.accept()
        sleep_at(work, world, position, _roll_back)
        assert set(_rates(world)) == {SegmentScaleRate()}, f"asleep at call {position}"


def test_a_late_rate_of_which_a_part_was_sent_is_replaced():
    """The store of one segment has it, and that of the other one does not answer."""
    world = work_on_request(_accept_update, _rates).accept()
    sent: list[str] = []

    def refuse_second(kind: str) -> None:
        sent.append(kind)
        if sent.count(POLICY) == 2:
            world.calls.calm()
            raise UnavailableError("the segment store restarts")

    def update_before(kind: str) -> None:
        if kind == POLICY:
            world.calls.calm()
            _update(world)
            world.calls.before = refuse_second
            refuse_second(kind)

    world.calls.before = update_before
    with pytest.raises(UnavailableError):
        world.process()
    assert set(_rates(world)) == {_present_rate(world)}

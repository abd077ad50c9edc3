"""What a processor creates late, and dies before it looks, is removed an hour later; what a stream has stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interruptions import sleep_and_die
from stream_world import StreamWorld, ranges

from headrace import topology
from headrace.controller.steps.stream_segments import CREATION_LOOKED_AT_AFTER_MS
from headrace.controller.ticks.remove_orphans import creation_ticks
from headrace.metadata.orphan_segments import creations_partition, decode_creation
from headrace.model.backoff import bucket_of_stream
from headrace.model.errors import UnavailableError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

CREATE = "segment store create_segments"
BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)


def _names(world: StreamWorld) -> list[str]:
    return [name.removeprefix("s/t/") for name in world.bare_segment_stores.names()]


def _noted(world: StreamWorld) -> list[list[int]]:
    records = world.bare_store.query(creations_partition(BUCKET), limit=100).records
    return [[identifier & 0xFFFFFFFF for identifier in decode_creation(record.body).segments] for record in records]


def _tick(world: StreamWorld, after_ms: int = CREATION_LOOKED_AT_AFTER_MS) -> None:
    world.clock.advance(after_ms)
    assert creation_ticks(world.tools()).run(BUCKET) is False


def _accept_creation(world: StreamWorld) -> None:
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)))
    world.receive()


def _accept_scale(world: StreamWorld) -> None:
    world.create()
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    world.receive()


def _accept_growth(world: StreamWorld) -> None:
    world.create()
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(4)))
    world.receive()


def _accept_roll(world: StreamWorld) -> None:
    world.create()
    world.update(segments=1)
    transaction = world.begin()
    world.write_in(transaction, 0.1, b"late")
    world.scale([0, 1], [0.0, 1.0])
    world.transactions.commit_transaction("s", "t", transaction)
    (world.in_hand,) = world.bare_commits.receive()


def _work(world: StreamWorld) -> None:
    if "request" in world.in_hand.body:
        world.process()
    else:
        world.commits.process(world.in_hand.body)


def _finish(world: StreamWorld) -> None:
    """Another processor ends the operation."""
    _work(world)
    queue = world.bare_queue if "request" in world.in_hand.body else world.bare_commits
    queue.acknowledge(world.in_hand.receipt)  # else the queue keeps the next message back


def _delete(world: StreamWorld) -> list[str]:
    _finish(world)
    world.seal()
    world.delete()
    return _names(world)


def _make_again(world: StreamWorld) -> list[str]:
    _delete(world)
    world.create()
    return _names(world)


def _truncate(world: StreamWorld) -> list[str]:
    """All segments that the stream had until then."""
    _finish(world)
    world.update(segments=1)
    world.scale(world.tail_ids(), [0.0, 1.0])
    world.truncate({world.tail_ids()[0]: 0})
    return _names(world)


def _create_late_and_die(world: StreamWorld, meanwhile: Callable[[StreamWorld], list[str]]) -> list[str]:
    """The processor sleeps before its request, and dies when that is carried out; what `meanwhile` left."""
    return sleep_and_die(world, CREATE, lambda: _work(world), lambda: meanwhile(world))


@pytest.mark.parametrize("meanwhile", [_delete, _make_again, _truncate])
@pytest.mark.parametrize("accept", [_accept_creation, _accept_scale, _accept_growth, _accept_roll])
def test_orphans_are_gone_an_hour_later(
    accept: Callable[[StreamWorld], None], meanwhile: Callable[[StreamWorld], list[str]]
):
    world = StreamWorld()
    accept(world)
    names = _create_late_and_die(world, meanwhile)
    assert set(_names(world)) > set(names), "the processor left none, so that nothing is tried"
    _tick(world, CREATION_LOOKED_AT_AFTER_MS - 1)
    assert set(_names(world)) > set(names), "another processor may still create"
    _tick(world, 1)
    assert _names(world) == names
    _tick(world)
    assert _noted(world) == []


def test_segments_of_a_stream_stay():
    world = StreamWorld()
    _accept_roll(world)
    _work(world)
    world.drain_transactions()
    world.update(segments=4)
    names = _names(world)
    assert len(_noted(world)) == 4
    _tick(world)
    assert (_names(world), _noted(world)) == (names, [])


def test_segments_of_an_operation_that_still_runs_stay():
    world = StreamWorld()
    _accept_scale(world)
    assert world.calls.dies(world.process, 3, done=True)
    names = _names(world)
    assert len(names) == 4
    _tick(world)
    assert (_names(world), _noted(world)) == (names, [])
    world.process()
    assert _noted(world) == [[2, 3]], "who creates again notes again"


def test_a_store_that_is_away_delays_the_removal():
    world = StreamWorld()
    _accept_creation(world)
    names = _create_late_and_die(world, _delete)
    world.calls.refuse("segment store delete", UnavailableError("away"))
    _tick(world)
    world.calls.calm()
    assert len(_names(world)) == 2
    assert len(_noted(world)) == 1
    _tick(world)
    assert (_names(world), _noted(world)) == (names, [])


def test_two_processors_at_the_same_moment_note_once():
    world = StreamWorld()
    _accept_creation(world)
    with world.calls.overtaken("write", world.process):
        world.process()
    assert _noted(world) == [[0, 1]]


def test_a_tick_without_notes_costs_one_query():
    world = StreamWorld()
    world.calls.counts.clear()
    _tick(world)
    assert world.calls.counts == {"query": 1}

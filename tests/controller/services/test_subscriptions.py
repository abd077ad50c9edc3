"""Subscriptions as the workflows of reader groups change them: repeatable, conditional, harmless where nothing is."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace.controller.services.retention_service import GENERATION_MAX, SubscriberService
from headrace.metadata.scope import scope_guard_key
from headrace.metadata.subscriber import SubscriberRecords, Subscriptions
from headrace.model.reader_groups import GroupStream
from headrace.model.stream_cuts import StreamCut
from headrace.ports.metadata_store import ANY_VERSION, Check, WriteConflictError

HOLDS = Check(scope_guard_key("s"), ANY_VERSION)
FAILS = Check(scope_guard_key("s"), None)
STREAM = GroupStream("s", "t")


@pytest.fixture
def subscriptions(world: StreamWorld) -> Subscriptions:
    """Over stream `t` of two segments with 100 bytes each."""
    world.create(segments=2)
    world.append(0, 100)
    world.append(1, 100)
    return Subscriptions(world.store, world.clock)


def _position(world: StreamWorld, name: str = "s/g") -> dict[int, int]:
    return SubscriberService(world.store, world.clock).get_subscriber("s", "t", name).position.cut.offsets


def _names(world: StreamWorld) -> list[str]:
    return [
        subscriber.name
        for subscriber in SubscriberService(world.store, world.clock).list_subscribers("s", "t", 10).items
    ]


def test_a_group_comes_and_goes_and_each_step_may_be_repeated(world: StreamWorld, subscriptions: Subscriptions):
    for _ in range(2):
        subscriptions.subscribe(STREAM, "s/g", 0, HOLDS)
        assert _position(world) == {0: 0, 1: 0}
    for _ in range(2):
        subscriptions.unsubscribe("s", "t", "s/g", HOLDS)
        assert _names(world) == []


def test_it_begins_where_the_group_begins(world: StreamWorld, subscriptions: Subscriptions):
    start = StreamCut.of("s", "t", {0: 10, 1: 20})
    subscriptions.subscribe(GroupStream("s", "t", start), "s/g", 0, HOLDS)
    assert _position(world) == {0: 10, 1: 20}
    again = StreamCut.of("s", "t", {0: 5, 1: 5})
    subscriptions.subscribe(GroupStream("s", "t", again), "s/g", 1, HOLDS)
    assert _position(world) == {0: 5, 1: 5}, "a reset goes back"
    subscriptions.subscribe(STREAM, "s/g", 2, HOLDS)
    assert _position(world) == {0: 0, 1: 0}, "without a start the readers begin anew at the head"
    subscriptions.subscribe(GroupStream("s", "t", start), "s/g", 2, HOLDS)
    assert _position(world) == {0: 0, 1: 0}, "the same generation changes nothing"


def test_a_start_of_another_life_counts_as_the_head(world: StreamWorld, subscriptions: Subscriptions):
    world.truncate({0: 30, 1: 30})
    subscriptions.subscribe(GroupStream("s", "t", StreamCut.of("s", "t", {7: 0})), "s/g", 0, HOLDS)
    assert _position(world) == {0: 30, 1: 30}


def test_nothing_is_written_when_the_condition_fails(world: StreamWorld, subscriptions: Subscriptions):
    subscriptions.subscribe(STREAM, "s/known", 0, HOLDS)
    before = world.everything()
    with pytest.raises(WriteConflictError):
        subscriptions.subscribe(STREAM, "s/g", 0, FAILS)
    with pytest.raises(WriteConflictError):
        subscriptions.unsubscribe("s", "t", "s/known", FAILS)
    assert world.everything() == before


def test_a_stream_that_is_gone_has_no_subscribers(world: StreamWorld, subscriptions: Subscriptions):
    subscriptions.subscribe(GroupStream("s", "none"), "s/g", 0, HOLDS)
    subscriptions.unsubscribe("s", "none", "s/g", HOLDS)


@pytest.mark.parametrize("registered", [2, 4, GENERATION_MAX])
def test_the_group_decides_on_its_own_generation(world: StreamWorld, subscriptions: Subscriptions, registered: int):
    """Whatever was registered under its name: its record, which the condition is about, is what counts."""
    subscriptions.subscribe(STREAM, "s/g", registered, HOLDS)
    with pytest.raises(WriteConflictError):
        subscriptions.subscribe(STREAM, "s/g", 3, FAILS)
    with pytest.raises(WriteConflictError):
        subscriptions.unsubscribe("s", "t", "s/g", FAILS)
    subscriptions.subscribe(STREAM, "s/g", 3, HOLDS)
    stream = world.records.get("s", "t").stream
    assert SubscriberRecords(world.bare_store).get(stream, "s/g").subscriber.generation == 3
    subscriptions.unsubscribe("s", "t", "s/g", HOLDS)
    assert _names(world) == []


def test_a_stream_that_changes_meanwhile_is_read_again(world: StreamWorld, subscriptions: Subscriptions):
    with world.calls.overtaken("transaction", lambda: world.scale([0], [0.0, 0.2, 0.5])):
        subscriptions.subscribe(STREAM, "s/g", 0, HOLDS)
    assert _names(world) == ["s/g"]

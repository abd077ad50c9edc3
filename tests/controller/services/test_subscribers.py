"""Subscribers: who may register, publish and leave, and what a race or a former life may not do."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.controller.services.subscribers import TAIL_CHECK_S, SubscriberService
from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream
from headrace.ports.deadlines import time_left_s, time_limit

S2, S3 = 1 << 32 | 2, 1 << 32 | 3
MERGED = 2 << 32 | 4


@pytest.fixture
def subscribers(world: StreamWorld) -> SubscriberService:
    """Over stream `t` of two segments: 0 has 100 bytes, 1 has 50."""
    world.create(segments=2)
    world.append(0, 100)
    world.append(1, 50)
    return SubscriberService(world.store, world.clock)


def _code(kind: type[HeadraceError], call: Any) -> str:
    with pytest.raises(kind) as error:
        call()
    return error.value.specific_code


def test_a_new_subscriber_needs_everything(world: StreamWorld, subscribers: SubscriberService):
    made = subscribers.register("s", "t", "group", 0)
    assert made == subscribers.get_subscriber("s", "t", "group")
    assert (made.generation, made.position.cut.offsets, made.updated_ms) == (0, {0: 0, 1: 0}, world.clock.now_ms())


def test_it_begins_at_the_head_or_where_it_says(world: StreamWorld, subscribers: SubscriberService):
    world.truncate({0: 30, 1: 20})
    assert subscribers.register("s", "t", "a", 0).position.cut.offsets == {0: 30, 1: 20}
    assert subscribers.register("s", "t", "b", 0, {0: 40, 1: 50}).position.cut.offsets == {0: 40, 1: 50}


def test_registering_again_changes_nothing(world: StreamWorld, subscribers: SubscriberService):
    subscribers.register("s", "t", "group", 2)
    subscribers.update_stream_cut("s", "t", "group", 2, {0: 10, 1: 10})
    before = world.everything()
    again = subscribers.register("s", "t", "group", 2, {0: 0, 1: 0})
    assert again.position.cut.offsets == {0: 10, 1: 10}
    assert world.everything() == before


def test_a_later_generation_takes_over(subscribers: SubscriberService):
    subscribers.register("s", "t", "group", 0)
    subscribers.update_stream_cut("s", "t", "group", 0, {0: 10, 1: 10})
    assert subscribers.register("s", "t", "group", 1).position.cut.offsets == {0: 10, 1: 10}
    assert subscribers.register("s", "t", "group", 2, {0: 5, 1: 5}).position.cut.offsets == {0: 5, 1: 5}
    mismatch = "generation_mismatch"
    assert _code(IllegalStateError, lambda: subscribers.register("s", "t", "group", 1)) == mismatch
    assert _code(IllegalStateError, lambda: subscribers.unregister("s", "t", "group", 1)) == mismatch
    cut = {0: 20, 1: 20}
    for generation in (1, 3):
        update = lambda generation=generation: subscribers.update_stream_cut("s", "t", "group", generation, cut)  # noqa: E731
        assert _code(IllegalStateError, update) == mismatch


def test_positions_move_on_only(world: StreamWorld, subscribers: SubscriberService):
    subscribers.register("s", "t", "group", 0)
    subscribers.update_stream_cut("s", "t", "group", 0, {0: 50, 1: 10})
    before = world.everything()
    for cut in ({0: 49, 1: 50}, {0: 50, 1: 9}, {0: 0, 1: 0}):
        refused = lambda cut=cut: subscribers.update_stream_cut("s", "t", "group", 0, cut)  # noqa: E731
        assert _code(InvalidRequestError, refused) == "stream_cut_not_valid"
    subscribers.update_stream_cut("s", "t", "group", 0, {0: 50, 1: 10})
    assert world.everything() == before, "the same cut again writes nothing"


@pytest.mark.parametrize(
    "cut", [{}, {0: 1}, {0: 1, 1: 1, S2: 0}, {0: 101, 1: 0}, {7: 0}, {-5: 1, 1: 0}, {0: -2, 1: 0}, {9 << 32: 0}]
)
def test_what_is_no_cut_of_the_stream_is_refused(
    world: StreamWorld, subscribers: SubscriberService, cut: dict[int, int]
):
    world.scale([0], [0.0, 0.2, 0.5])
    subscribers.register("s", "t", "group", 0)
    before = world.everything()
    update = lambda: subscribers.update_stream_cut("s", "t", "group", 0, cut)  # noqa: E731
    assert _code(InvalidRequestError, update) == "stream_cut_not_valid"
    start = lambda: subscribers.register("s", "t", "other", 0, cut)  # noqa: E731
    assert _code(InvalidRequestError, start) == "stream_cut_not_valid"
    assert world.everything() == before


def test_a_segment_not_reached_yet_gives_way_to_what_it_follows(world: StreamWorld, subscribers: SubscriberService):
    """Java readers name a merged segment with -1 while one of the two that it follows is still being read."""
    subscribers.register("s", "t", "group", 0)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(S3, 7)
    world.scale([S3, 1], [0.2, 1.0])
    found = subscribers.update_stream_cut("s", "t", "group", 0, {S2: 0, MERGED: -1, 1: 30})
    assert found.position.cut.offsets == {S2: 0, S3: 7, 1: 30}
    found = subscribers.update_stream_cut("s", "t", "group", 0, {S2: 0, MERGED: 0})
    assert found.position.cut.offsets == {S2: 0, MERGED: 0}


def test_who_is_unknown_is_told_so(subscribers: SubscriberService):
    cut = {0: 0, 1: 0}
    unknown = "subscriber_not_found"
    assert _code(NotFoundError, lambda: subscribers.update_stream_cut("s", "t", "group", 0, cut)) == unknown
    assert _code(NotFoundError, lambda: subscribers.get_subscriber("s", "t", "group")) == unknown
    subscribers.unregister("s", "t", "group", 0)
    for call in (
        lambda: subscribers.register("s", "none", "group", 0),
        lambda: subscribers.update_stream_cut("s", "none", "group", 0, cut),
        lambda: subscribers.list_subscribers("s", "none", 10),
        lambda: subscribers.unregister("s", "none", "group", 0),
    ):
        assert _code(NotFoundError, call) == "not_found"


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a/b/c", "a b", "x" * 300, "ü"])
def test_what_can_be_no_name_is_refused(subscribers: SubscriberService, name: str):
    assert _code(InvalidRequestError, lambda: subscribers.register("s", "t", name, 0)) == "invalid_name"


def test_lists_come_in_pages(subscribers: SubscriberService):
    for name in ("b", "a", "other/a", "c"):
        subscribers.register("s", "t", name, 0)
    first = subscribers.list_subscribers("s", "t", 2)
    assert [one.name for one in first.items] == ["a", "b"]
    rest = subscribers.list_subscribers("s", "t", 10, first.next_after)
    assert ([one.name for one in rest.items], rest.next_after) == (["c", "other/a"], None)
    subscribers.unregister("s", "t", "a", 0)
    subscribers.unregister("s", "t", "a", 0)
    assert [one.name for one in subscribers.list_subscribers("s", "t", 10).items] == ["b", "c", "other/a"]


@pytest.mark.parametrize("call", ["read", "write", "transaction"])
def test_a_lost_race_is_settled_by_reading_again(world: StreamWorld, subscribers: SubscriberService, call: str):
    """Somebody registers and publishes while this one is about to."""
    other = SubscriberService(world.bare_store, world.clock)

    def first() -> None:
        other.register("s", "t", "group", 0)
        other.update_stream_cut("s", "t", "group", 0, {0: 10, 1: 10})

    with world.calls.overtaken(call, first):
        assert subscribers.register("s", "t", "group", 0).generation == 0
        found = subscribers.update_stream_cut("s", "t", "group", 0, {0: 20, 1: 20})
    assert found.position.cut.offsets == {0: 20, 1: 20}


def test_nobody_registers_with_a_stream_that_is_gone(world: StreamWorld, subscribers: SubscriberService):
    def gone() -> None:
        world.seal()
        world.delete()

    with world.calls.overtaken("transaction", gone):
        assert _code(NotFoundError, lambda: subscribers.register("s", "t", "group", 0)) == "not_found"
    assert [sort for _, sort in world.everything() if sort.startswith("subscriber/")] == []


def test_a_store_that_is_away_does_not_delay_a_position(world: StreamWorld, subscribers: SubscriberService):
    """The reader that publishes waits for the answer, and the function must have time left to note the position."""

    def store_is_away(_stream: Stream, _cut: StreamCut) -> None:
        waited_s = time_left_s(20.0)
        world.clock.advance(int(waited_s * 1000))
        raise UnavailableError(f"no answer within {waited_s} s")

    subscribers.register("s", "t", "group", 0)
    asking = SubscriberService(world.store, world.clock, store_is_away)
    began_s = world.clock.monotonic_s()
    with time_limit(world.clock, 21.0):
        asking.update_stream_cut("s", "t", "group", 0, {0: 10, 1: 10})
        assert time_left_s() > 21.0 - TAIL_CHECK_S - 1
    assert world.clock.monotonic_s() - began_s <= TAIL_CHECK_S
    assert subscribers.get_subscriber("s", "t", "group").position.cut.offsets == {0: 10, 1: 10}

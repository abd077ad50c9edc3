"""Reader groups from creation to deletion: crashes, races, late processors, subscriptions, and what is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import (
    Work,
    after_each_crash,
    after_each_sleep,
    assert_an_absent_segment_store_only_delays,
    assert_crashes_lose_and_double_nothing,
    assert_two_at_once_do_it_once,
    undisturbed,
    work_on_request,
)
from stream_world import StreamWorld

from headrace.controller.operations.registry import OPERATIONS
from headrace.controller.services.retention_service import GENERATION_MAX, SubscriberService
from headrace.metadata.reader_group import ReaderGroupRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
)
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, ReaderGroupState, RetentionMode
from headrace.model.requests import ResourceKind
from headrace.model.stream_cuts import StreamCut
from headrace.ports.metadata_store import WriteConflictError

ID, OTHER_ID = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
GROUP_KINDS = {"create_reader_group", "update_reader_group", "delete_reader_group"}


def _reads(*streams: str, retention: RetentionMode = RetentionMode.MANUAL) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration(tuple(GroupStream("s", stream) for stream in streams), retention)


def _world() -> StreamWorld:
    """The streams `t`, `u` and `v` are there."""
    world = StreamWorld()
    for stream in ("t", "u", "v"):
        world.create(stream)
    return world


@pytest.fixture
def groups_world() -> StreamWorld:
    return _world()


def _create(world: StreamWorld, group_id: str = ID) -> None:
    world.reader_groups.create_reader_group("s", "g", group_id, _reads("t", "u"))
    assert world.drain() == 1


def _accept_create(world: StreamWorld) -> None:
    world.reader_groups.create_reader_group("s", "g", ID, _reads("t", "u"))


def _accept_update(world: StreamWorld) -> None:
    _create(world)
    world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("u", "v"))


def _accept_delete(world: StreamWorld) -> None:
    _create(world)
    world.reader_groups.delete_reader_group("s", "g", ID)


ACCEPT = {
    "create_reader_group": _accept_create,
    "update_reader_group": _accept_update,
    "delete_reader_group": _accept_delete,
}


def _subscribers(world: StreamWorld, stream: str) -> dict[str, int]:
    """Generation by name."""
    subscribers = SubscriberRecords(world.bare_store).all(world.records.get("s", stream).stream)
    return {subscriber.name: subscriber.generation for subscriber in subscribers}


def _outcome(world: StreamWorld) -> tuple[Any, Any]:
    return world.everything(), sorted(world.bare_segment_stores.names())


def _work(kind: str) -> Work[StreamWorld]:
    return work_on_request(ACCEPT[kind], _outcome, make=_world)


def test_every_request_is_tried():
    kinds = {str(kind) for kind in OPERATIONS if kind.resource is ResourceKind.READER_GROUP}
    assert kinds == GROUP_KINDS
    assert set(ACCEPT) == GROUP_KINDS


def test_a_life(groups_world: StreamWorld):
    world = groups_world
    assert world.reader_groups.create_reader_group("s", "g", ID, _reads("t", "u")).state is ReaderGroupState.CREATING
    world.drain()
    group = world.reader_groups.get_reader_group("s", "g")
    assert (group.state, group.generation, group.group_id) == (ReaderGroupState.ACTIVE, 0, ID)
    assert "s/_RGg/0.#epoch.0" in world.bare_segment_stores.names()
    assert [_subscribers(world, stream) for stream in "tuv"] == [{"s/g": 0}, {"s/g": 0}, {}]
    updated = world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("u", "v"))
    assert (updated.state, updated.generation) == (ReaderGroupState.UPDATING, 1)
    world.drain()
    assert [_subscribers(world, stream) for stream in "tuv"] == [{}, {"s/g": 1}, {"s/g": 1}]
    world.reader_groups.reset_reader_group("s", "g", ID, 1)
    world.drain()
    assert [_subscribers(world, stream) for stream in "tuv"] == [{}, {"s/g": 2}, {"s/g": 2}]
    silent = _reads("u", "v", retention=RetentionMode.NONE)
    world.reader_groups.update_reader_group("s", "g", ID, 2, silent)
    world.drain()
    assert [_subscribers(world, stream) for stream in "tuv"] == [{}, {}, {}]
    assert world.reader_groups.delete_reader_group("s", "g", ID).state is ReaderGroupState.DELETING
    assert world.reader_groups.delete_reader_group("s", "g", ID).state is ReaderGroupState.DELETING
    with pytest.raises(ConflictError):
        _accept_create(world)
    world.drain()
    assert not [name for name in world.bare_segment_stores.names() if "_RG" in name]
    for ask in (
        lambda: world.reader_groups.get_reader_group("s", "g"),
        lambda: world.reader_groups.delete_reader_group("s", "g", ID),
        lambda: world.reader_groups.reset_reader_group("s", "g", ID, 0),
    ):
        with pytest.raises(NotFoundError):
            ask()
    with pytest.raises(NotFoundError):
        world.streams.get_stream("s", "_RGg")


def test_a_group_that_exists_is_answered_as_it_is(groups_world: StreamWorld):
    _create(groups_world)
    before = groups_world.everything()
    group = groups_world.reader_groups.create_reader_group("s", "g", OTHER_ID, _reads("v"))
    assert (group.group_id, group.configuration) == (ID, _reads("t", "u"))
    assert groups_world.everything() == before


def test_the_state_stream_is_a_stream_that_no_list_shows(groups_world: StreamWorld):
    world = groups_world
    _create(world)
    stream = world.streams.get_stream("s", "_RGg")
    assert (stream.segments, stream.configuration.rollover_size_bytes) == (1, 4 << 20)
    assert [summary.stream for summary in world.streams.list_streams("s", 10).items] == ["t", "u", "v"]
    assert world.reader_groups.list_reader_groups("s", 10).items == ("g",)


def test_a_group_created_anew_has_a_state_stream_without_a_past(groups_world: StreamWorld):
    world = groups_world
    _create(world)
    world.reader_groups.delete_reader_group("s", "g", ID)
    world.drain()
    _create(world, OTHER_ID)
    assert [name for name in world.bare_segment_stores.names() if "_RG" in name] == ["s/_RGg/1.#epoch.0"]
    with pytest.raises(IllegalStateError) as stale:
        world.reader_groups.delete_reader_group("s", "g", ID)
    assert stale.value.specific_code == "reader_group_mismatch"


def test_an_update_that_is_repeated_changes_nothing(groups_world: StreamWorld):
    world = groups_world
    _accept_update(world)
    before = world.everything()
    assert world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("u", "v")).generation == 1
    assert world.everything() == before
    with pytest.raises(IllegalStateError):
        world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("t"))
    with pytest.raises(ConflictError):
        world.reader_groups.update_reader_group("s", "g", ID, 1, _reads("t"))
    world.drain()
    assert world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("u", "v")).state is ReaderGroupState.ACTIVE
    with pytest.raises(IllegalStateError):
        world.reader_groups.reset_reader_group("s", "g", ID, 0)


def test_streams_and_scope_must_be_there(groups_world: StreamWorld):
    world = groups_world
    before = world.everything()
    with pytest.raises(NotFoundError) as missing:
        world.reader_groups.create_reader_group("s", "g", ID, _reads("t", "nowhere"))
    assert missing.value.specific_code == "stream_not_found"
    with pytest.raises(NotFoundError) as missing:
        world.reader_groups.create_reader_group("none", "g", ID, _reads("t"))
    assert missing.value.specific_code == "not_found"
    assert world.everything() == before
    _create(world)
    with pytest.raises(NotFoundError):
        world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("t", "nowhere"))
    with pytest.raises(NotFoundError):
        world.reader_groups.list_reader_groups("none", 10)


def test_a_group_starts_where_its_configuration_says(groups_world: StreamWorld):
    world = groups_world
    world.append(0, 100, "t")
    cut = StreamCut.of("s", "t", {0: 60, 1: 0})
    world.reader_groups.create_reader_group(
        "s", "g", ID, ReaderGroupConfiguration((GroupStream("s", "t", cut),), RetentionMode.AUTOMATIC)
    )
    world.drain()
    (subscriber,) = SubscriberRecords(world.bare_store).all(world.records.get("s", "t").stream)
    assert subscriber.position.cut == cut


def test_a_reset_needs_again_what_was_read(groups_world: StreamWorld):
    """What is published under the generation before is refused from then on."""
    world = groups_world
    _create(world)
    subscribers = SubscriberService(world.store, world.clock)
    world.append(0, 100, "t")
    assert subscribers.update_stream_cut("s", "t", "s/g", 0, {0: 60, 1: 0}).position.cut.offsets == {0: 60, 1: 0}
    world.reader_groups.reset_reader_group("s", "g", ID, 0)
    world.drain()
    assert subscribers.get_subscriber("s", "t", "s/g").position.cut.offsets == {0: 0, 1: 0}
    with pytest.raises(IllegalStateError) as stale:
        subscribers.update_stream_cut("s", "t", "s/g", 0, {0: 80, 1: 0})
    assert stale.value.specific_code == "generation_mismatch"
    subscribers.update_stream_cut("s", "t", "s/g", 1, {0: 80, 1: 0})


@pytest.mark.parametrize("generation", [1, GENERATION_MAX])
def test_a_name_registered_ahead_of_its_group_blocks_nothing(groups_world: StreamWorld, generation: int):
    """The group is created, updated and deleted all the same, and so is what can be deleted after it."""
    world = groups_world
    subscribers = SubscriberService(world.store, world.clock)
    subscribers.register("s", "t", "s/g", generation)
    _create(world)
    assert world.reader_groups.get_reader_group("s", "g").state is ReaderGroupState.ACTIVE
    assert _subscribers(world, "t") == {"s/g": 0}
    subscribers.update_stream_cut("s", "t", "s/g", 0, {0: 0, 1: 0})
    subscribers.register("s", "v", "s/g", 0)
    world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("u", "v"))
    world.drain()
    assert [_subscribers(world, stream) for stream in "tuv"] == [{}, {"s/g": 1}, {"s/g": 1}]
    world.reader_groups.delete_reader_group("s", "g", ID)
    world.drain()
    assert [_subscribers(world, stream) for stream in "tuv"] == [{}, {}, {}]
    with pytest.raises(NotFoundError):
        world.reader_groups.get_reader_group("s", "g")


def test_a_group_s_name_is_registered_in_its_own_generation_only(groups_world: StreamWorld):
    world = groups_world
    _create(world)
    subscribers = SubscriberService(world.store, world.clock)
    for generation in (1, GENERATION_MAX):
        with pytest.raises(IllegalStateError) as refused:
            subscribers.register("s", "t", "s/g", generation)
        assert refused.value.specific_code == "generation_mismatch"
    assert subscribers.register("s", "v", "s/g", 0).generation == 0
    assert _subscribers(world, "t") == {"s/g": 0}, "so what its readers publish is taken"


def test_a_registration_is_decided_again_when_the_group_changes(groups_world: StreamWorld):
    world = groups_world
    _create(world)
    subscribers = SubscriberService(world.store, world.clock)
    with (
        world.calls.overtaken("transaction", lambda: world.reader_groups.reset_reader_group("s", "g", ID, 0)),
        pytest.raises(IllegalStateError) as refused,
    ):
        subscribers.register("s", "v", "s/g", 0)
    assert refused.value.specific_code == "generation_mismatch"


def test_a_cut_that_is_none_of_the_stream_is_refused(groups_world: StreamWorld):
    world = groups_world
    before = world.everything()
    for start in ({7: 0}, {0: 0}):
        reads = ReaderGroupConfiguration((GroupStream("s", "t", StreamCut.of("s", "t", start)),))
        with pytest.raises(InvalidRequestError) as refused:
            world.reader_groups.create_reader_group("s", "g", ID, reads)
        assert refused.value.specific_code == "invalid_stream_cut"
    assert world.everything() == before
    _create(world)
    with pytest.raises(InvalidRequestError):
        world.reader_groups.update_reader_group("s", "g", ID, 0, reads)


def test_a_stream_that_goes_meanwhile_is_no_hindrance(groups_world: StreamWorld):
    world = groups_world
    _create(world)
    for stream in ("t", "u"):
        world.seal(stream)
        world.delete(stream)
    world.reader_groups.update_reader_group("s", "g", ID, 0, _reads("u", "v"))
    world.drain()
    assert _subscribers(world, "v") == {"s/g": 1}
    world.reader_groups.delete_reader_group("s", "g", ID)
    world.drain()
    assert _subscribers(world, "v") == {}


def test_a_scope_with_a_group_is_not_empty(groups_world: StreamWorld):
    world = groups_world
    world.scopes.create_scope("own")
    world.reader_groups.create_reader_group("own", "g", ID, _reads("t"))
    world.drain()
    with pytest.raises(IllegalStateError, match="reader groups"):
        world.scopes.delete_scope("own")
    assert _subscribers(world, "t") == {"own/g": 0}
    world.reader_groups.delete_reader_group("own", "g", ID)
    world.drain()
    world.scopes.delete_scope("own")


def test_a_lost_message_is_made_good_by_the_sweeper(groups_world: StreamWorld):
    world = groups_world
    world.queue.is_down = True
    _accept_create(world)
    world.queue.is_down = False
    world.sweep()
    assert world.drain() == 1
    assert world.reader_groups.get_reader_group("s", "g").state is ReaderGroupState.ACTIVE
    world.sweep()
    assert world.drain() == 0


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(kind), done=done) >= 8


def _places(records: dict[tuple[str, str], Any]) -> set[tuple[str, str]]:
    """Where records lie; those whose place is a time, by what they are only."""
    work = [key for key in records if key[0] != "bucket-leases"]  # those are the sweeper's own, and stay
    # Each attempt to create segments leaves a note, whose place begins with a time, for an hour.
    noted = {(partition, sort.partition("/")[2]) for partition, sort in work if partition.startswith("creations/")}
    others = (key for key in work if not key[0].startswith("creations/"))
    return noted | {(partition, sort.rstrip("0123456789")) for partition, sort in others}


@pytest.mark.parametrize("kind", ACCEPT)
def test_after_a_crash_the_sweeper_alone_ends_the_work(kind: str):
    """The message is lost with its processor; what the state stream still needs has an intent of its own."""
    records, segments = undisturbed(_work(kind)).outcome
    crashes = 0
    for position, world in after_each_crash(_work(kind), done=True):
        crashes += 1
        world.acknowledge()
        world.clock.advance(300_000)
        world.sweep()
        world.drain()
        after = _outcome(world)
        assert (_places(after[0]), after[1]) == (_places(records), segments), f"after a crash at call {position}"
    assert crashes >= 8


@pytest.mark.parametrize("kind", ACCEPT)
def test_two_processors_at_once_do_it_once(kind: str):
    """The second does the whole work while the first waits before each of its calls in turn."""
    assert assert_two_at_once_do_it_once(_work(kind)) >= 8


def _live_on(world: StreamWorld) -> Any:
    """The work ends, the group is deleted, and one of the same name begins; what there is then."""
    kind = world.in_hand.body["kind"]
    world.process()
    world.acknowledge()
    if kind != "delete_reader_group":
        world.reader_groups.delete_reader_group("s", "g", ID)
        world.drain()
    _create(world, OTHER_ID)
    return world.everything()


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_processor_that_slept_through_a_life_changes_no_record(kind: str):
    slept = 0
    for position, world, present in after_each_sleep(_work(kind), _live_on):
        assert world.everything() == present, f"woken up at call {position}"
        assert "s/_RGg/1.#epoch.0" in world.bare_segment_stores.names()
        slept += 1
    assert slept >= 8


@pytest.mark.parametrize("kind", ["create_reader_group", "delete_reader_group"])
def test_a_segment_store_that_is_away_delays_only(kind: str):
    assert_an_absent_segment_store_only_delays(_work(kind))


def test_conflicts_without_end_are_given_back_to_the_queue(groups_world: StreamWorld):
    _accept_create(groups_world)
    groups_world.receive()
    groups_world.calls.refuse("transaction", WriteConflictError("somebody else was faster", {0: None}))
    with pytest.raises(ConflictError):
        groups_world.process()


def test_only_a_group_under_deletion_is_buried(groups_world: StreamWorld):
    _create(groups_world)
    records = ReaderGroupRecords(groups_world.bare_store)
    with pytest.raises(CorruptError):
        records.replace_with_tombstone(records.get("s", "g"))

"""Key-value tables from creation to deletion: crashes, races, late processors, and what is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from interruptions import (
    Work,
    after_each_sleep,
    assert_an_absent_segment_store_only_delays,
    assert_crashes_lose_and_double_nothing,
    assert_two_at_once_do_it_once,
    work_on_request,
)
from stream_world import StreamWorld

from headrace.controller.operations.registry import ALL_OPERATIONS
from headrace.metadata.key_value_table import KeyValueTableRecords
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    IllegalStateError,
    NotFoundError,
)
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.requests import ResourceKind
from headrace.ports.metadata_store import WriteConflictError

CONFIGURATION = TableConfiguration(partition_count=3, primary_key_length=4, secondary_key_length=2)
SEGMENTS = [f"s/k_kvtable/{number}.#epoch.0" for number in range(3)]


def _accept_create(world: StreamWorld) -> None:
    world.tables.create_table("s", "k", CONFIGURATION)


def _create(world: StreamWorld) -> None:
    _accept_create(world)
    assert world.drain() == 1


def _accept_delete(world: StreamWorld) -> None:
    _create(world)
    world.tables.delete_table("s", "k")


ACCEPT = {"create_key_value_table": _accept_create, "delete_key_value_table": _accept_delete}


def _outcome(world: StreamWorld) -> tuple[Any, Any]:
    return world.everything(), sorted(world.bare_segment_stores.names())


def _work(kind: str) -> Work[StreamWorld]:
    return work_on_request(ACCEPT[kind], _outcome)


def test_every_request_is_tried_and_has_its_steps_in_order():
    on_tables = [operation for operation in ALL_OPERATIONS if operation.kind.resource is ResourceKind.KEY_VALUE_TABLE]
    steps = {str(operation.kind): [step.name for step in operation.steps] for operation in on_tables}
    assert steps == {
        "create_key_value_table": ["create segments", "open"],
        "delete_key_value_table": ["delete segments", "forget"],
    }
    assert set(ACCEPT) == set(steps)


def test_a_life(world: StreamWorld):
    created = world.tables.create_table("s", "k", CONFIGURATION)
    assert created.state is TableState.CREATING
    with pytest.raises(NotFoundError):
        world.tables.segments_of_table("s", "k")
    world.drain()
    assert _outcome(world)[1] == SEGMENTS
    view = world.tables.segments_of_table("s", "k")
    assert [(segment.segment_id, segment.key_range.high) for segment in view.segments] == [
        (0, 1 / 3),
        (1, 2 / 3),
        (2, 1.0),
    ]
    assert world.tables.list_tables("s", 10).items == ("k",)
    with pytest.raises(AlreadyExistsError):
        _accept_create(world)
    assert world.tables.delete_table("s", "k").state is TableState.DELETING
    assert world.tables.delete_table("s", "k").state is TableState.DELETING
    with pytest.raises(AlreadyExistsError):
        _accept_create(world)
    assert world.drain() == 1
    assert _outcome(world)[1] == []
    assert world.tables.list_tables("s", 10).items == ()
    for ask in (world.tables.get_table, world.tables.segments_of_table, world.tables.delete_table):
        with pytest.raises(NotFoundError):
            ask("s", "k")


def test_segments_learn_the_length_of_keys_and_their_rollover(world: StreamWorld):
    told: list[Any] = []
    world.bare_segment_stores.create_table_segment = lambda *given: told.append(given)
    world.tables.create_table("s", "k", TableConfiguration(1, 4, 2, rollover_size_bytes=99))
    world.drain()
    assert told == [(SEGMENTS[0], 6, 99)]


def test_a_table_of_the_same_name_has_other_segments(world: StreamWorld):
    _accept_delete(world)
    world.drain()
    _create(world)
    assert [segment.segment_id for segment in world.tables.get_table("s", "k").segments] == [3, 4, 5]
    assert _outcome(world)[1] == [f"s/k_kvtable/{number}.#epoch.0" for number in (3, 4, 5)]


def test_a_table_that_is_being_created_cannot_be_deleted_yet(world: StreamWorld):
    _accept_create(world)
    with pytest.raises(ConflictError) as refused:
        world.tables.delete_table("s", "k")
    assert refused.value.retry == "now"


def test_a_scope_with_a_table_is_not_empty(world: StreamWorld):
    _create(world)
    with pytest.raises(IllegalStateError, match="key-value tables"):
        world.scopes.delete_scope("s")
    world.tables.delete_table("s", "k")
    world.drain()
    world.scopes.delete_scope("s")
    with pytest.raises(NotFoundError):
        _accept_create(world)
    with pytest.raises(NotFoundError):
        world.tables.list_tables("s", 10)


def test_a_scope_with_a_concurrently_created_table_is_kept(world: StreamWorld):
    """The deleter has looked and found nothing; then comes the table."""

    with world.calls.overtaken("transaction", lambda: _accept_create(world)), pytest.raises(IllegalStateError):
        world.scopes.delete_scope("s")
    assert world.scopes.get_scope("s") == "s"


def test_a_lost_message_is_made_good_by_the_sweeper(world: StreamWorld):
    world.queue.is_down = True
    _accept_create(world)
    world.queue.is_down = False
    assert world.drain() == 0
    world.sweep()
    assert world.drain() == 1
    assert world.tables.get_table("s", "k").state is TableState.ACTIVE
    world.sweep()
    assert world.drain() == 0


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
@pytest.mark.parametrize("kind", ACCEPT)
def test_a_crash_anywhere_loses_and_doubles_nothing(kind: str, done: bool):
    assert assert_crashes_lose_and_double_nothing(_work(kind), done=done) >= 5


@pytest.mark.parametrize("kind", ACCEPT)
def test_two_processors_at_once_do_it_once(kind: str):
    """The second does the whole work while the first waits before each of its calls in turn."""
    assert assert_two_at_once_do_it_once(_work(kind)) >= 5


def _live_on(world: StreamWorld) -> Any:
    """The deletion ends, and a table of the same name begins; what there is then."""
    world.process()
    world.acknowledge()
    _create(world)
    return _outcome(world)


def test_a_late_processor_leaves_a_recreated_table_unchanged():
    """It wakes before any of its calls of a deletion, while a table of the same name is in use."""
    slept = 0
    for position, world, present in after_each_sleep(_work("delete_key_value_table"), _live_on):
        assert _outcome(world) == present, f"woken up at call {position}"
        slept += 1
    assert slept >= 5


def _recreated(world: StreamWorld) -> list[str]:
    _create(world)
    return [f"s/k_kvtable/{number}.#epoch.0" for number in range(3, 6)]


@pytest.mark.parametrize("then", [lambda _world: [], _recreated], ids=["deleted", "recreated"])
def test_a_late_creation_leaves_no_segments(then: Callable[[StreamWorld], list[str]]):
    """The processor wakes before any of its calls, when another one has created the table and it was deleted."""

    def live_on(world: StreamWorld) -> list[str]:
        world.process()
        world.acknowledge()
        world.tables.delete_table("s", "k")
        assert world.drain() == 1
        return then(world)

    for position, world, present in after_each_sleep(_work("create_key_value_table"), live_on):
        assert sorted(world.bare_segment_stores.names()) == present, f"woken up at call {position}"


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_segment_store_that_is_away_delays_only(kind: str):
    assert_an_absent_segment_store_only_delays(_work(kind))


def test_conflicts_without_end_are_given_back_to_the_queue(world: StreamWorld):
    _accept_create(world)
    world.receive()
    world.calls.refuse("transaction", WriteConflictError("somebody else was faster", {0: None}))
    with pytest.raises(ConflictError):
        world.process()


def test_only_a_table_under_deletion_is_buried(world: StreamWorld):
    _create(world)
    records = KeyValueTableRecords(world.bare_store)
    with pytest.raises(CorruptError):
        records.replace_with_tombstone(records.get("s", "k"))


def test_the_message_goes_to_the_group_of_the_table(world: StreamWorld):
    _accept_create(world)
    (message,) = world.bare_queue.receive()
    assert (message.group, message.body[str(ResourceKind.KEY_VALUE_TABLE)]) == ("s/k", "k")

"""Key-value tables from creation to deletion: crashes, races, late processors, and what is left behind."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from headrace.metadata.key_value_table_records import KeyValueTableRecords
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    IllegalStateError,
    NotFoundError,
    UnavailableError,
)
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.requests import Noun
from headrace.ports.metadata_store import WriteConflictError
from headrace.workflows.table_lifecycle import TableLifecycle

CONFIGURATION = TableConfiguration(partition_count=3, primary_key_length=4, secondary_key_length=2)
CALLS_PER_WORKFLOW_MAX = 100
SEGMENTS = [f"s/k_kvtable/{number}.#epoch.0" for number in range(3)]


def _accept_create(world: Any) -> None:
    world.tables.create_table("s", "k", CONFIGURATION)


def _create(world: Any) -> None:
    _accept_create(world)
    assert world.drain() == 1


def _accept_delete(world: Any) -> None:
    _create(world)
    world.tables.delete_table("s", "k")


ACCEPT = {"create_key_value_table": _accept_create, "delete_key_value_table": _accept_delete}


def _outcome(world: Any) -> tuple[Any, Any]:
    return world.everything(), sorted(world.bare_segment_stores.names())


def _expected(stream_world: Any, kind: str) -> tuple[Any, Any]:
    world = stream_world.StreamWorld()
    ACCEPT[kind](world)
    assert world.drain() == 1
    return _outcome(world)


def _processor(world: Any) -> Any:
    return TableLifecycle(world.store, world.segment_stores).processor()


def test_every_request_is_tried_and_has_its_steps_in_order(world: Any):
    steps = {str(kind): [step.name for step in steps] for kind, steps in _processor(world).steps.items()}
    assert steps == {
        "create_key_value_table": ["create segments", "open"],
        "delete_key_value_table": ["delete segments", "forget"],
    }
    assert set(ACCEPT) == set(steps)


def test_a_life(world: Any):
    created = world.tables.create_table("s", "k", CONFIGURATION)
    assert created.state is TableState.CREATING
    with pytest.raises(NotFoundError):
        world.tables.segments_of_table("s", "k")
    world.drain()
    assert _outcome(world)[1] == SEGMENTS
    found = world.tables.segments_of_table("s", "k")
    assert [(one.segment_id, one.key_range.high) for one in found.segments] == [(0, 1 / 3), (1, 2 / 3), (2, 1.0)]
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


def test_segments_learn_the_length_of_keys_and_their_rollover(world: Any):
    told: list[Any] = []
    world.bare_segment_stores.create_table_segment = lambda *given: told.append(given)
    world.tables.create_table("s", "k", TableConfiguration(1, 4, 2, rollover_size_bytes=99))
    world.drain()
    assert told == [(SEGMENTS[0], 6, 99)]


def test_a_table_of_the_same_name_has_other_segments(world: Any):
    _accept_delete(world)
    world.drain()
    _create(world)
    assert [one.segment_id for one in world.tables.get_table("s", "k").segments] == [3, 4, 5]
    assert _outcome(world)[1] == [f"s/k_kvtable/{number}.#epoch.0" for number in (3, 4, 5)]


def test_a_table_that_is_being_created_cannot_be_deleted_yet(world: Any):
    _accept_create(world)
    with pytest.raises(ConflictError) as refused:
        world.tables.delete_table("s", "k")
    assert refused.value.retry == "now"


def test_a_scope_with_a_table_is_not_empty(world: Any):
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


def test_a_scope_under_deletion_stays_if_a_table_is_created_meanwhile(world: Any):
    """The deleter has looked and found nothing; then comes the table."""

    def create(kind: str) -> None:
        if kind == "transaction":
            world.calls.calm()
            _accept_create(world)

    world.calls.before = create
    with pytest.raises(IllegalStateError):
        world.scopes.delete_scope("s")
    assert world.scopes.get_scope("s") == "s"


def test_a_lost_message_is_made_good_by_the_sweeper(world: Any):
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
def test_a_crash_anywhere_loses_and_doubles_nothing(stream_world: Any, kind: str, done: bool):
    wanted = _expected(stream_world, kind)
    crashes = 0
    for position in range(CALLS_PER_WORKFLOW_MAX):
        world = stream_world.StreamWorld()
        ACCEPT[kind](world)
        (message,) = world.bare_queue.receive()
        world.calls.crash_at(position, done=done)
        try:
            world.requests.process(message.body)
        except stream_world.Crash:
            crashes += 1
        else:
            break
        finally:
            world.calls.calm()
        world.requests.process(message.body)
        assert _outcome(world) == wanted, f"after a crash at call {position}"
        world.requests.process(message.body)
        assert _outcome(world) == wanted, "a message after the work is done changes nothing"
    assert crashes >= 5


@pytest.mark.parametrize("kind", ACCEPT)
def test_two_processors_at_once_do_it_once(stream_world: Any, kind: str):
    """The second does the whole work while the first waits before each of its calls in turn."""
    wanted = _expected(stream_world, kind)
    for position in range(CALLS_PER_WORKFLOW_MAX):
        world = stream_world.StreamWorld()
        ACCEPT[kind](world)
        (message,) = world.bare_queue.receive()
        overtaken = world.calls.interrupt_at(position, partial(world.requests.process, message.body))
        world.requests.process(message.body)
        world.calls.calm()
        assert _outcome(world) == wanted, f"overtaken before call {position}"
        if not overtaken:
            break
    assert position >= 5


def _live_on(world: Any, message: Any) -> Any:
    """The deletion ends, and a table of the same name begins; what there is then."""
    world.requests.process(message.body)
    world.bare_queue.acknowledge(message.receipt)
    _create(world)
    return _outcome(world)


def test_a_processor_that_slept_through_a_life_touches_nothing_of_the_next(stream_world: Any):
    """It wakes before any of its calls of a deletion, while a table of the same name is in use."""
    for position in range(CALLS_PER_WORKFLOW_MAX):
        world = stream_world.StreamWorld()
        _accept_delete(world)
        (message,) = world.bare_queue.receive()
        present = world.calls.interrupt_at(position, partial(_live_on, world, message))
        world.requests.process(message.body)
        world.calls.calm()
        if not present:
            break
        assert _outcome(world) == present[0], f"woken up at call {position}"
    assert position >= 5


@pytest.mark.parametrize("kind", ACCEPT)
def test_a_segment_store_that_is_away_delays_only(stream_world: Any, kind: str):
    world = stream_world.StreamWorld()
    ACCEPT[kind](world)
    (message,) = world.bare_queue.receive()

    def away(call: str) -> None:
        if call.startswith("segment store"):
            raise UnavailableError("the segment store restarts")

    world.calls.before = away
    with pytest.raises(UnavailableError):
        world.requests.process(message.body)
    world.calls.calm()
    world.requests.process(message.body)
    assert _outcome(world) == _expected(stream_world, kind)


def test_conflicts_without_end_are_given_back_to_the_queue(world: Any):
    _accept_create(world)
    (message,) = world.bare_queue.receive()

    def lose(kind: str) -> None:
        if kind == "transaction":
            raise WriteConflictError("somebody else was faster", {0: None})

    world.calls.before = lose
    with pytest.raises(ConflictError):
        world.requests.process(message.body)


def test_only_a_table_under_deletion_is_buried(world: Any):
    _create(world)
    records = KeyValueTableRecords(world.bare_store)
    with pytest.raises(CorruptError):
        records.bury(records.get("s", "k"))


def test_the_message_goes_to_the_group_of_the_table(world: Any):
    _accept_create(world)
    (message,) = world.bare_queue.receive()
    assert (message.group, message.body[str(Noun.KEY_VALUE_TABLE)]) == ("s/k", "k")

"""A scope is deleted with everything in it: in pieces, after crashes anywhere, and never one that came later."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import CALLS_MAX, assert_crashes_lose_and_double_nothing, sleep_at, work_on_request
from stream_world import StreamWorld

from headrace.controller.operations import delete_scope
from headrace.model.errors import (
    AlreadyExistsError,
    IllegalStateError,
    NotFoundError,
    UnavailableError,
)
from headrace.model.key_value_tables import TableConfiguration
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

GROUP_ID = "00000000-0000-0000-0000-00000000000a"
FIXED = StreamConfiguration(ScalingPolicy.fixed(2), tags=("x",))


def _fill(world: StreamWorld) -> None:
    """In scope `s`: a reader group that subscribes to two streams; an active, a scaled and a sealed stream, one that is
    still being created, and two tables."""
    world.create("active", tags=("a", "b"))
    world.create("scaled")
    world.scale([world.tail_ids("scaled")[0]], [0.0, 0.25, 0.5], "scaled")
    world.create("sealed")
    world.seal("sealed")
    world.tables.create_table("s", "table", TableConfiguration(2, 8))
    reads = ReaderGroupConfiguration((GroupStream("s", "active"), GroupStream("s", "sealed")), RetentionMode.AUTOMATIC)
    world.reader_groups.create_reader_group("s", "group", GROUP_ID, reads)
    world.drain()
    world.streams.create_stream("s", "creating", FIXED)
    world.tables.create_table("s", "coming", TableConfiguration(1, 8))
    _drop_messages(world)


def _drop_messages(world: StreamWorld) -> None:
    for message in world.bare_queue.receive():
        world.bare_queue.acknowledge(message.receipt)


def _left(world: StreamWorld) -> set[str]:
    """The partitions that still hold records."""
    return {partition for partition, _ in world.everything()}


def _outcome(world: StreamWorld) -> Any:
    return world.everything(), world.bare_segment_stores.names()


def test_everything_in_the_scope_goes(world: StreamWorld):
    _fill(world)
    world.scope_deletions.delete_scope_recursively("s")
    assert world.scopes.is_deleting("s")
    assert world.drain() == 1
    assert world.bare_segment_stores.names() == []
    names = ("active", "scaled", "sealed", "creating")
    tombstones = {f"stream/s/{name}" for name in names} | {
        "stream/s/_RGgroup",
        "reader-group/s/group",
        "key-value-table/s/table",
        "key-value-table/s/coming",
    }
    left = _left(world) - tombstones
    # Notes of created segments stay for an hour; each goes when the tick has looked at it.
    assert {sort for sort in left if not sort.startswith("creations/")} == {"scope-guard/s"}
    with pytest.raises(NotFoundError):
        world.scopes.get_scope("s")
    assert world.scopes.list_scopes(10).items == ()
    world.scopes.create_scope("s")
    world.create("active")
    assert world.tail_ids("active") == [2, 3], "segment numbers go on"


def test_an_empty_scope_goes_too(world: StreamWorld):
    world.scope_deletions.delete_scope_recursively("s")
    world.drain()
    with pytest.raises(NotFoundError):
        world.scope_deletions.delete_scope_recursively("s")


def test_nothing_is_created_in_a_scope_that_goes(world: StreamWorld):
    world.create()
    world.scope_deletions.delete_scope_recursively("s")
    for create in (
        lambda: world.streams.create_stream("s", "new", FIXED),
        lambda: world.tables.create_table("s", "new", TableConfiguration(1, 8)),
        lambda: world.scopes.delete_scope("s"),
    ):
        with pytest.raises(IllegalStateError) as refused:
            create()
        assert refused.value.specific_code == "scope_deleting"
    with pytest.raises(AlreadyExistsError):
        world.scopes.create_scope("s")


def test_a_repeat_changes_nothing(world: StreamWorld):
    world.create()
    world.scope_deletions.delete_scope_recursively("s")
    before = world.everything()
    world.scope_deletions.delete_scope_recursively("s")
    assert world.everything() == before
    assert world.drain() == 1


def test_a_large_scope_goes_in_pieces(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delete_scope, "RESOURCES_PER_MESSAGE", 2)
    for number in range(5):
        world.create(f"t{number}", segments=1)
    world.tables.create_table("s", "table", TableConfiguration(1, 8))
    world.drain()
    world.scope_deletions.delete_scope_recursively("s")
    assert world.drain() == 3
    assert world.bare_segment_stores.names() == []
    assert world.scopes.list_scopes(10).items == ()


def test_a_piece_whose_message_cannot_be_sent_comes_again(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delete_scope, "RESOURCES_PER_MESSAGE", 1)
    for name in ("a", "b"):
        world.create(name)
    world.scope_deletions.delete_scope_recursively("s")
    (message,) = world.bare_queue.receive()
    world.queue.is_down = True
    with pytest.raises(UnavailableError):
        world.requests.process(message.body)
    world.queue.is_down = False
    world.requests.process(message.body)
    assert world.scopes.list_scopes(10).items == ()


def test_a_lost_message_is_sent_again(world: StreamWorld):
    world.create()
    world.queue.is_down = True
    world.scope_deletions.delete_scope_recursively("s")
    world.queue.is_down = False
    world.sweep()
    world.drain()
    assert world.scopes.list_scopes(10).items == ()


def _accept(world: StreamWorld) -> None:
    _fill(world)
    world.scope_deletions.delete_scope_recursively("s")


DELETION = work_on_request(_accept, _outcome)


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_crash_anywhere_loses_and_doubles_nothing(done: bool):
    """At every fifth call: the workflows of streams and tables are tried call by call elsewhere."""
    crashes = assert_crashes_lose_and_double_nothing(DELETION, done=done, first=int(done), every=5)
    assert 20 <= crashes < CALLS_MAX // 5


def _live_on(world: StreamWorld) -> Any:
    """The scope goes, and one of the same name is made and filled; what there is then."""
    world.process()
    world.acknowledge()
    world.scopes.create_scope("s")
    _fill(world)
    world.sweep()
    world.drain()  # A pending creation would be finished by whoever sees it, which is no harm.
    return world.everything()


@pytest.mark.parametrize("position", range(0, 120, 7))
def test_a_late_processor_leaves_a_recreated_scope_unchanged(position: int):
    """It wakes up at one of its calls, with what it read before, when the scope was deleted and made anew."""
    world = DELETION.accept()
    present = sleep_at(DELETION, world, position, _live_on)
    assert world.everything() == present

"""The plan of a restore: what it counts, and what it says cannot come back."""

from __future__ import annotations

import pytest
from restore_world import AT_MS, CONTAINERS, EPOCH, HOME, OBJECT, RestoreWorld

from headrace.adapters.dynamodb.client import dynamodb_client
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.dynamodb.table_items import TableItems, key_of
from headrace.metadata.restoration import object_count_key
from headrace.model.errors import IllegalStateError
from headrace.model.restore_plan import NeededObject, ObjectState, ObjectVersion
from headrace.ports.metadata_store import Delete
from headrace.restore.planning import GAPS_SHOWN_MAX, RestorePlan, judged_objects, make_plan


def test_plan_changes_nothing(world: RestoreWorld):
    before, versions = world.content(), world.versions()
    world.plan()
    assert (world.content(), world.versions()) == (before, versions)


def test_plan_counts_what_comes_back_and_what_stays(world: RestoreWorld):
    plan = world.plan()
    assert plan.objects == {ObjectState.DELETED: 4}
    assert plan.runs == 2
    assert plan.run_bytes > len(OBJECT)
    assert plan.later == 0, "what a test writes now is older than the time of the copy"
    assert plan.records["stream"] == 10
    assert (plan.gaps, plan.gap_count) == ([], 0)


def test_plan_counts_objects_that_are_newer_than_the_copy(world: RestoreWorld):
    made = world.deployment
    plan = make_plan(made.now, made.then, made.then_store, made.bucket, 0)
    assert (plan.later, plan.later_bytes > len(OBJECT)) == (2, True)


def test_plan_names_the_epochs_of_each_container(world: RestoreWorld):
    containers = {each.container: each for each in world.plan().containers}
    assert set(containers) == set(range(CONTAINERS))
    home = containers[HOME]
    assert (home.then.epoch, home.now.epoch, home.epoch_in_names) == (EPOCH, EPOCH + 2, EPOCH + 3)
    assert home.discards_log


@pytest.mark.parametrize("name", ["packed", "snapshot", "index"])
def test_object_that_has_expired_is_a_gap(world: RestoreWorld, name: str):
    expired = getattr(world, name)
    world.expire(expired)
    plan = world.plan()
    assert [(gap.name, gap.reason) for gap in plan.gaps] == [(expired, "no version of the object is left")]


def test_object_that_was_replaced_is_a_gap(world: RestoreWorld):
    world.put(world.packed, b"something else")
    assert [gap.name for gap in world.plan().gaps] == [world.packed]


def test_run_whose_object_is_not_counted_is_a_gap(world: RestoreWorld):
    world.deployment.then_store.write(Delete(object_count_key(world.packed), None))
    (gap,) = world.plan().gaps
    assert gap.name.startswith("chunks/shop/orders/0")
    assert "part of a transaction" in gap.reason


def test_copy_of_another_table_is_refused(world: RestoreWorld):
    create_table("empty", dynamodb_client())
    made = world.deployment
    made.then = TableItems("empty")
    with pytest.raises(IllegalStateError, match="empty"):
        world.plan()


def test_items_of_a_table_come_in_pages_of_a_batch_read(world: RestoreWorld):
    items = world.deployment.now
    pages = [[key_of(item) for item in page] for page in items.pages()]
    assert {key for page in pages for key in page} == set(world.content())


def test_gaps_are_counted_beyond_those_that_are_named():
    plan = RestorePlan("copy", AT_MS)
    for number in range(GAPS_SHOWN_MAX + 5):
        plan.note_gap(str(number), "why")
    assert (len(plan.gaps), plan.gap_count) == (GAPS_SHOWN_MAX, GAPS_SHOWN_MAX + 5)


def test_each_name_is_met_once_in_order():
    def stored(name: str) -> tuple[ObjectVersion, ...]:
        return (ObjectVersion(name, "v", False, True, 1, 1),)

    found = list(judged_objects([NeededObject(each, 1) for each in "bdf"], map(stored, "abce")))
    states = [(None if each is None else (each.name, str(each.state)), [v.name for v in rest]) for each, rest in found]
    assert states == [
        (None, ["a"]),
        (("b", "present"), ["b"]),
        (None, ["c"]),
        (("d", "expired"), []),
        (None, ["e"]),
        (("f", "expired"), []),
    ]

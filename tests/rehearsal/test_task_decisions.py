"""Which tasks the rehearsal starts and stops, as ECS would."""

from __future__ import annotations

import pytest

from rehearsal.task_decisions import Decision, HealthCheck, RunningTask, Service, decide

STORE = Service("store", "new", desired=1)
ONE_COPY = Service("store", "new", desired=1, healthy_min_percent=0, running_max_percent=100)
BRIDGE = Service("bridge", "new", desired=2)


def task(
    id_: str, definition: str = "new", *, service: str = "store", healthy: bool = True, **state: bool
) -> RunningTask:
    return RunningTask(id_, service, definition, is_healthy=healthy, **state)


def test_a_new_service_gets_its_tasks():
    assert decide([BRIDGE], []) == Decision(start=(BRIDGE, BRIDGE))


def test_a_starting_task_is_not_started_again():
    assert decide([STORE], [task("1", healthy=False)]) == Decision()


def test_a_service_with_healthy_tasks_is_settled():
    assert decide([STORE], [task("1")]) == Decision(settled=("store",))


def test_a_new_task_starts_next_to_the_old_one():
    assert decide([STORE], [task("1", "old")]) == Decision(start=(STORE,))


def test_the_old_task_stays_until_the_new_one_is_healthy():
    assert decide([STORE], [task("1", "old"), task("2", healthy=False)]) == Decision()


def test_the_old_task_stops_when_the_new_one_is_healthy():
    assert decide([STORE], [task("1", "old"), task("2")]) == Decision(stop=("1",))


def test_a_protected_task_stays_and_the_service_waits():
    assert decide([STORE], [task("1", "old", is_protected=True), task("2")]) == Decision()


def test_a_service_is_not_settled_while_a_task_ends():
    assert decide([STORE], [task("1", "old", is_stopping=True), task("2")]) == Decision()


def test_with_one_copy_the_old_task_stops_first():
    assert decide([ONE_COPY], [task("1", "old")]) == Decision(stop=("1",))


def test_with_one_copy_no_task_starts_while_another_ends():
    assert decide([ONE_COPY], [task("1", "old", is_stopping=True)]) == Decision()
    assert decide([ONE_COPY], []) == Decision(start=(ONE_COPY,))


def test_no_more_than_the_maximum_of_tasks_run():
    tasks = [task(str(number), "old", service="bridge") for number in range(3)]
    assert decide([BRIDGE], tasks).start == (BRIDGE,)


def test_an_update_stops_as_many_as_are_spare():
    tasks = [task("1", "old", service="bridge"), task("2", "old", service="bridge"), task("3", service="bridge")]
    assert decide([BRIDGE], tasks) == Decision(start=(BRIDGE,), stop=("1",))


def test_a_desired_count_of_zero_spares_protected_tasks():
    none = Service("store", "new", desired=0)
    assert decide([none], [task("1"), task("2", is_protected=True)]) == Decision(stop=("1",))
    assert decide([none], []) == Decision(settled=("store",))


def test_a_deleted_service_stops_also_protected_tasks():
    deleted = Service("store", "new", desired=1, is_active=False)
    assert decide([deleted], [task("1", is_protected=True)]) == Decision(stop=("1",))


def test_tasks_of_an_unknown_service_stop():
    assert decide([], [task("1"), task("2", is_stopping=True)]) == Decision(stop=("1",))


def test_a_failed_task_is_replaced():
    failed = task("1", has_failed=True)
    assert decide([STORE], [failed]) == Decision(start=(STORE,), stop=("1",))


@pytest.mark.parametrize(
    ("last_success_s", "now_s", "has_failed"),
    [(None, 599.0, False), (None, 601.0, True), (500.0, 799.0, False), (500.0, 801.0, True)],
)
def test_a_health_check_fails_after_all_retries(last_success_s: float | None, now_s: float, has_failed: bool):
    check = HealthCheck(("probe",), interval_s=30, timeout_s=10, retries=10, start_period_s=300)
    assert check.has_failed(0.0, last_success_s, now_s) is has_failed

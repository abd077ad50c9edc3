"""Maintenance tasks of a container: in turn, also if one fails, until the container ends; and names of objects."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.chunks import packed_name
from headrace.model.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    HeadraceError,
    ThrottledError,
    UnavailableError,
)
from headrace.ports.chunk_storage import CHUNK_STORAGE_REFUSED, ChunkStorage
from headrace.ports.metadata_store import UNANSWERED_WRITE_S
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.periodic_task import NO_REST, Rest
from headrace.segmentstore.tiering.maintenance import MaintenanceTasks, Sweep
from headrace.segmentstore.tiering.owner_writes import ObjectNames, put_new
from headrace.segmentstore.tiering.storage_limits import StorageLimits

pytestmark = pytest.mark.anyio

CONTAINER, EPOCH = 4, 7
LIMITS = replace(StorageLimits(), tick_s=9.5)


@dataclass
class Container:
    """What maintenance needs of a container. It is its own `log` and `metrics`."""

    container: int = CONTAINER
    failure: HeadraceError | None = None
    storage_refusals: int = 0
    failures: list[HeadraceError] = field(default_factory=list)

    @property
    def log(self) -> Container:
        return self

    @property
    def metrics(self) -> Container:
        return self

    def fail(self, error: HeadraceError) -> None:
        self.failures.append(error)


class Task:
    """A maintenance task whose passes have these results."""

    def __init__(self, *results: bool | Exception) -> None:
        self.results = list(results)
        self.passes = 0
        self.passed = asyncio.Event()

    async def run_pass(self) -> bool:
        self.passes += 1
        self.passed.set()
        result = self.results.pop(0) if self.results else False
        if isinstance(result, Exception):
            raise result
        return result


def tasks_of(container: Container, *tasks: Task, limits: StorageLimits = LIMITS) -> MaintenanceTasks:
    return MaintenanceTasks(cast("SegmentContainer", container), tasks, limits)


@pytest.mark.parametrize(
    ("results", "more"), [((False, False), False), ((True, False), True), ((False, True), True), ((True, True), True)]
)
async def test_any_task_may_have_more_to_do(results: tuple[bool, bool], more: bool):
    tasks = [Task(result) for result in results]
    assert await tasks_of(Container(), *tasks).run_pass() is more
    assert [task.passes for task in tasks] == [1, 1]


async def test_first_failure_is_raised_after_all_tasks_have_run():
    first, second = UnavailableError("first"), ThrottledError("second")
    tasks = [Task(True), Task(first), Task(second), Task(True)]
    with pytest.raises(UnavailableError) as raised:
        await tasks_of(Container(), *tasks).run_pass()
    assert raised.value is first
    assert [task.passes for task in tasks] == [1, 1, 1, 1]


@pytest.mark.parametrize("error", [CorruptError("contradiction"), FencedError("another owner")])
async def test_error_that_ends_the_container_stops_the_tasks(error: HeadraceError):
    tasks = [Task(UnavailableError("away")), Task(error), Task()]
    with pytest.raises(type(error)) as raised:
        await tasks_of(Container(), *tasks).run_pass()
    assert raised.value is error
    assert [task.passes for task in tasks] == [1, 1, 0]


async def test_tasks_rest_unless_there_is_more_to_do():
    maintenance = tasks_of(Container(), Task(True, False))
    assert await maintenance._run() is NO_REST
    assert await maintenance._run() == Rest.fixed(LIMITS.tick_s)


async def test_tasks_of_a_failed_container_end():
    task = Task(True)
    assert await tasks_of(Container(failure=FencedError("another owner")), task)._run() is None
    assert task.passes == 0


async def test_tasks_run_from_start_to_stop():
    task = Task()
    maintenance = tasks_of(Container(), task)
    await asyncio.sleep(0)
    assert task.passes == 0
    maintenance.start()
    await task.passed.wait()
    await maintenance.stop()
    assert (task.passes, maintenance._periodic.is_running) == (1, False)


async def test_outage_is_repeated_and_reported_as_such(caplog: pytest.LogCaptureFixture):
    container = Container()
    assert tasks_of(container)._failed(UnavailableError("away"), 2.0) is True
    assert "event=chore_retry container=4 retry_s=2.0" in caplog.text
    assert (container.failures, container.storage_refusals) == ([], 0)


async def test_pauses_of_an_outage_grow_up_to_their_bound(monkeypatch: pytest.MonkeyPatch):
    limits = replace(LIMITS, retry_first_s=0.001, retry_max_s=0.003)
    maintenance = tasks_of(Container(), Task(*4 * [UnavailableError("away")]), limits=limits)
    pauses = []

    def noted(_error: Exception, retry_s: float) -> bool:
        pauses.append(retry_s)
        return len(pauses) < 4

    monkeypatch.setattr(maintenance._periodic, "_on_failure", noted)
    await maintenance._periodic.run()
    assert pauses == [0.001, 0.002, 0.003, 0.003]


async def test_refusal_is_repeated_and_counted(caplog: pytest.LogCaptureFixture):
    container = Container()
    refused = UnavailableError("denied", code=CHUNK_STORAGE_REFUSED)
    assert tasks_of(container)._failed(refused, 2.0) is True
    assert f"event=storage_refused container=4 cause={CHUNK_STORAGE_REFUSED} retry_s=2.0" in caplog.text
    assert "chore_retry" not in caplog.text
    assert (container.failures, container.storage_refusals) == ([], 1)
    known = UnavailableError("denied", code=CHUNK_STORAGE_REFUSED, details={"cause": "AccessDenied"})
    assert tasks_of(container)._failed(known, 4.0) is True
    assert "event=storage_refused container=4 cause=AccessDenied retry_s=4.0" in caplog.text
    assert container.storage_refusals == 2


async def test_contradiction_fails_the_container():
    container, error = Container(), CorruptError("contradiction")
    assert tasks_of(container)._failed(error, 2.0) is False
    assert container.failures == [error]


async def test_defect_fails_the_container(caplog: pytest.LogCaptureFixture):
    container = Container()
    assert tasks_of(container)._failed(ValueError("a defect"), 2.0) is False
    assert ["a defect" in error.message for error in container.failures] == [True]
    assert "event=chores_failed container=4" in caplog.text


async def test_sweep_is_due_after_its_time_and_then_again():
    clock, swept = ManualClock(), list[float]()

    async def sweep() -> None:
        swept.append(clock.monotonic_s())

    task = Sweep(clock, 10.0, sweep)
    for _ in range(35):
        assert await task.run_pass() is False
        clock.advance(1_000)
    assert swept == [10.0, 20.0, 30.0]


async def test_sweep_that_fails_waits_for_its_next_time():
    clock, task = ManualClock(), Task(UnavailableError("away"), False)
    sweep = Sweep(clock, 10.0, task.run_pass)
    clock.advance(25_000)
    with pytest.raises(UnavailableError):
        await sweep.run_pass()
    clock.advance(9_999)
    await sweep.run_pass()
    assert task.passes == 1
    clock.advance(1)
    await sweep.run_pass()
    assert task.passes == 2


# Names of objects


def test_names_are_never_used_twice():
    names = ObjectNames(CONTAINER, EPOCH, ManualClock())
    given = []
    for _ in range(3):
        with names.new() as name:
            given.append(name)
    assert given == [packed_name(CONTAINER, EPOCH, number) for number in (1, 2, 3)]


def test_object_may_be_entered_until_no_write_can_arrive():
    clock = ManualClock()
    names = ObjectNames(CONTAINER, EPOCH, clock)
    with names.new() as name:
        clock.advance(int(10_000 * UNANSWERED_WRITE_S))
        assert names.may_be_entered(name)
        with names.new() as other:
            assert names.may_be_entered(name)
    for milliseconds, may in ((1, True), (int(1_000 * UNANSWERED_WRITE_S) - 2, True), (1, False)):
        clock.advance(milliseconds)
        assert (names.may_be_entered(name), names.may_be_entered(other)) == (may, may)


def test_names_are_forgotten_when_no_write_can_arrive():
    clock = ManualClock()
    names = ObjectNames(CONTAINER, EPOCH, clock)
    for _ in range(3):
        with names.new():
            clock.advance(int(1_000 * UNANSWERED_WRITE_S))
    assert len(names._used_until_s) == 2, "the last one, and the one before, which was used until it began"


def test_name_that_failed_counts_as_used():
    clock = ManualClock()
    names = ObjectNames(CONTAINER, EPOCH, clock)
    with pytest.raises(UnavailableError), names.new() as name:
        raise UnavailableError("away")
    assert names.may_be_entered(name)
    clock.advance(int(1_000 * UNANSWERED_WRITE_S))
    assert not names.may_be_entered(name)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        (packed_name(CONTAINER, EPOCH, 1), False),
        (packed_name(CONTAINER, EPOCH - 1, 1), False),
        (packed_name(CONTAINER, EPOCH + 1, 1), True),
        (packed_name(CONTAINER + 1, EPOCH - 1, 1), True),
        ("another object", True),
    ],
)
def test_only_former_owners_are_known_to_enter_nothing(name: str, may: bool):
    assert ObjectNames(CONTAINER, EPOCH, ManualClock()).may_be_entered(name) is may


class Chunks:
    async def put(self, _name: str, _parts: object) -> None:
        raise AlreadyExistsError("there")


async def test_object_that_is_there_already_gets_another_name():
    with pytest.raises(UnavailableError, match="object x is there already"):
        await put_new(cast("ChunkStorage", Chunks()), "x", [b"y"])

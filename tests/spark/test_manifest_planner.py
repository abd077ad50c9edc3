"""Plans of batches in a directory: each event in one batch, one unfinished batch at a time, crashes at any point."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.model.errors import CorruptError, UnavailableError
from headrace.spark import manifest_planner
from headrace.spark.manifest_planner import ManifestPlanner
from headrace.spark.manifests import manifest_name, manifest_number, partition_of_line
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.plan_files import PLANS_REFUSED, LocalFiles

FRAME_BYTES = 20


class Planning:
    """Planners of one directory, one after the other, as restarts of a driver make them."""

    def __init__(self, store: StoreDouble, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.opened: list[MicroBatches] = []

    def planner(self, files: LocalFiles | None = None, **options: str) -> ManifestPlanner:
        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
        where |= {"approx_bytes_per_trigger": str(10 * FRAME_BYTES), "idle_poll_ms": "1"}
        batches = MicroBatches(read_options(where | options))
        self.opened.append(batches)
        found = ManifestPlanner(batches, files or LocalFiles(self.directory))
        found.open()
        return found

    def manifests(self) -> list[int]:
        numbers = map(manifest_number, sorted(file.name for file in self.directory.iterdir()))
        return [number for number in numbers if number is not None]

    def ranges(self, number: int) -> list[tuple[int, int, int]]:
        lines = (self.directory / manifest_name(number)).read_text().splitlines()
        parts = [planned.part for line in lines for planned in partition_of_line(line)]
        return [(part.segment_id, part.start, part.end) for part in parts]


@pytest.fixture
def planning(store: StoreDouble, tmp_path: Path) -> Iterator[Planning]:
    found = Planning(store, tmp_path / "plans")
    yield found
    for batches in found.opened:
        with closing(batches):
            pass


def fill(store: StoreDouble, events: int) -> None:
    for number in range(events):
        store.stream.append(number % 2 / 2, bytes(FRAME_BYTES - 8))


def test_a_batch_waits_for_the_one_before(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    planner = planning.planner()
    assert planning.manifests() == [0], "a query that is started now finds it"
    assert not planner.step(None), "the query has not said yet that it has finished the batch"
    assert planner.step(0)
    assert not planner.step(0)
    assert planner.step(1)
    assert planning.manifests() == [1, 2]
    assert planning.ranges(1) == [(0, 100, 200), (1, 100, 200)]
    assert not planner.step(2)
    assert planner.caught_up(2)
    assert not planner.caught_up(1)


def test_a_restart_continues_after_the_newest_manifest(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    first = planning.planner()
    first.step(0)
    again = planning.planner(start_stream_cut="latest")
    assert not again.step(None)
    assert not again.step(0), "its batch 1 may have been read already"
    assert again.step(1)
    assert planning.ranges(2) == [(0, 200, 300), (1, 200, 300)]


def test_the_start_is_kept_before_there_is_a_batch(planning: Planning, store: StoreDouble) -> None:
    fill(store, 10)
    assert not planning.planner(start_stream_cut="latest").step(None)
    fill(store, 4)
    planning.planner(start_stream_cut="latest")
    assert planning.ranges(0) == [(0, 100, 140), (1, 100, 140)]


def test_two_planners_cannot_write_one_batch(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    first, second = planning.planner(), planning.planner()
    first.step(0)
    with pytest.raises(CorruptError, match="another planner"):
        second.step(0)


@pytest.mark.parametrize("finished", [0, 5])
def test_plans_of_another_checkpoint_are_refused(planning: Planning, store: StoreDouble, finished: int) -> None:
    fill(store, 100)
    planner = planning.planner()
    for done in (0, 1):
        assert planner.step(done)
    with pytest.raises(CorruptError, match="one checkpoint only"):
        planner.step(finished)


def test_an_empty_directory_with_an_old_checkpoint_is_refused(planning: Planning, store: StoreDouble) -> None:
    fill(store, 10)
    with pytest.raises(CorruptError, match="one checkpoint only"):
        planning.planner().step(7)


def test_a_problem_fails_its_batch_and_the_next_start_continues(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    planner = planning.planner()
    planner.fail(UnavailableError("no controller"))
    with pytest.raises(UnavailableError, match="no controller"):
        planning.ranges(1)
    again = planning.planner()
    assert planning.ranges(1) == [(0, 100, 200), (1, 100, 200)], "not an empty batch, which may be the only one"
    assert again.step(1)
    assert planning.ranges(2) == [(0, 200, 300), (1, 200, 300)]


def test_a_planner_that_goes_on_after_a_problem_recovers(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    planner = planning.planner()
    planner.fail(UnavailableError("no controller"))
    planner.recover()
    assert planning.ranges(1) == []
    assert planner.step(1)
    assert planning.ranges(2) == [(0, 100, 200), (1, 100, 200)]


def test_another_file_in_the_directory_is_no_manifest(planning: Planning, store: StoreDouble) -> None:
    fill(store, 10)
    planning.planner()
    (planning.directory / manifest_name(1)).write_text(json.dumps({"something": "else"}))
    with pytest.raises(CorruptError, match="is not a manifest"):
        planning.planner()


def test_plans_hold_the_cut_where_they_end(planning: Planning, store: StoreDouble) -> None:
    fill(store, 10)
    planning.planner()
    head = json.loads((planning.directory / manifest_name(0)).read_text().splitlines()[0])
    assert head["end"] == cut_text(store.stream.tail())


def write_checkpoint(directory: Path, committed: int, *plans: int) -> None:
    """What Spark has written after a batch of as many sources of files as there are `plans`."""
    for name, text in (("commits", "v1"), ("offsets", "\n".join(["v1", "{}", "5", *map(offset, plans)]))):
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / str(committed)).write_text(text)


def offset(plan: int) -> str:
    return json.dumps({"logOffset": plan})


@pytest.mark.parametrize(
    ("plans", "source", "is_ahead", "manifests"),
    [
        ((0,), 0, True, [0, 1]),
        ((7, 0), 1, True, [0, 1]),
        ((7, 0), 0, False, [0]),
        ((0,), 1, False, [0]),
        ((-1,), 0, True, [0]),
    ],
    ids=["finished", "a second source", "of another query", "no such source", "not finished"],
)
def test_a_batch_is_ahead_if_the_checkpoint_knows(
    planning: Planning, store: StoreDouble, plans: tuple[int, ...], source: int, is_ahead: bool, manifests: list[int]
) -> None:
    """A query with trigger(availableNow=True) lists the plans before it says anything."""
    fill(store, 30)
    checkpoint = planning.directory.parent / "checkpoint"
    planning.planner().record_checkpoint(str(checkpoint), source)
    write_checkpoint(checkpoint, 12, *plans)
    assert planning.planner().is_ahead == is_ahead
    assert planning.manifests() == manifests


def test_a_checkpoint_without_a_batch_has_finished_none(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    planning.planner().record_checkpoint(str(planning.directory.parent / "checkpoint"), 0)
    assert planning.planner().is_ahead
    assert planning.manifests() == [0]


@pytest.mark.parametrize("checkpoint", [None, "hdfs://name/checkpoint"])
def test_an_unknown_checkpoint_leaves_planning_to_progress(
    planning: Planning, store: StoreDouble, checkpoint: str | None
) -> None:
    fill(store, 30)
    planner = planning.planner()
    if checkpoint is not None:
        planner.record_checkpoint(checkpoint, 0)
    again = planning.planner()
    assert not again.is_ahead
    assert again.step(0)


class Unreliable(LocalFiles):
    """Fails the next calls with `errors`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.errors: list[Exception] = []

    def _next_error(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def names(self) -> list[str]:
        self._next_error()
        return super().names()

    def read(self, name: str) -> bytes | None:
        self._next_error()
        return super().read(name)

    def create(self, name: str, data: bytes) -> bool:
        self._next_error()
        return super().create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self._next_error()
        super().replace(name, data)

    def delete(self, name: str) -> None:
        self._next_error()
        super().delete(name)


SLOW_DOWN = UnavailableError("503 SlowDown")


def test_a_directory_that_fails_for_a_moment_is_asked_again(
    planning: Planning, store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_planner, "REPEAT_S", 0.0)
    fill(store, 100)
    files = Unreliable(planning.directory)
    moments: list[Any] = [SLOW_DOWN, OSError("input/output error")]
    files.errors = [*moments]
    planner = planning.planner(files)
    for finished in (0, 1, 2):
        files.errors = [*moments]
        assert planner.step(finished)
        assert not files.errors
    planner.fail(UnavailableError("no controller"))
    files.errors = [*moments]
    planner.recover()
    assert planning.ranges(4) == []
    planner.fail(UnavailableError("no controller"))
    files.errors = [*moments]
    planning.planner(files)
    assert planning.ranges(5) == [(0, 400, 500), (1, 400, 500)]


@pytest.mark.parametrize("error", [UnavailableError("403", code=PLANS_REFUSED), PermissionError("no")])
def test_a_refusal_is_said_at_once(planning: Planning, store: StoreDouble, error: Exception) -> None:
    fill(store, 30)
    files = Unreliable(planning.directory)
    planner = planning.planner(files)
    files.errors = [error]
    with pytest.raises(type(error)):
        planner.step(0)
    assert not files.errors


def test_patience_with_the_directory_ends(
    planning: Planning, store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_planner, "REPEAT_S", 0.1)
    fill(store, 30)
    files = Unreliable(planning.directory)
    planner = planning.planner(files, patience_s="1")
    files.errors = [SLOW_DOWN] * 1000
    with pytest.raises(UnavailableError, match="SlowDown"):
        planner.step(0)
    assert len(files.errors) > 900


def test_old_plans_are_deleted_before_there_is_a_new_one(planning: Planning, store: StoreDouble) -> None:
    """Otherwise an error would follow a new plan, and its own plan would be the second that is not finished."""
    fill(store, 100)

    class Kept(LocalFiles):
        def delete(self, name: str) -> None:
            raise PermissionError(name)

    planner = planning.planner(Kept(planning.directory))
    planner.step(0)
    with contextlib.suppress(PermissionError):
        planner.step(1)
    assert planning.manifests() == [0, 1]

"""Plans of batches in a directory: each event in one batch, one unfinished batch at a time, crashes at any point."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.model.errors import CorruptError, UnavailableError
from headrace.spark.manifest_planner import ManifestPlanner
from headrace.spark.manifests import manifest_name, manifest_number, partition_of_line
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.plan_files import LocalFiles

FRAME_BYTES = 20


class Planning:
    """Planners of one directory, one after the other, as restarts of a driver make them."""

    def __init__(self, store: StoreDouble, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.opened: list[MicroBatches] = []

    def planner(self, **options: str) -> ManifestPlanner:
        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
        where |= {"approx_bytes_per_trigger": str(10 * FRAME_BYTES), "idle_poll_ms": "1"}
        batches = MicroBatches(read_options(where | options))
        self.opened.append(batches)
        found = ManifestPlanner(batches, LocalFiles(self.directory))
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
    assert planner.step(None)
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
    first.step(None)
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
    assert planning.planner(start_stream_cut="latest").step(None)
    assert planning.ranges(0) == [(0, 100, 140), (1, 100, 140)]


def test_two_planners_cannot_write_one_batch(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    first, second = planning.planner(), planning.planner()
    first.step(None)
    with pytest.raises(CorruptError, match="another planner"):
        second.step(None)


@pytest.mark.parametrize("finished", [0, 5])
def test_plans_of_another_checkpoint_are_refused(planning: Planning, store: StoreDouble, finished: int) -> None:
    fill(store, 100)
    planner = planning.planner()
    for done in (None, 0, 1):
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
    planner.step(None)
    planner.fail(UnavailableError("no controller"))
    with pytest.raises(UnavailableError, match="no controller"):
        planning.ranges(1)
    again = planning.planner()
    assert planning.ranges(1) == []
    assert again.step(1)
    assert planning.ranges(2) == [(0, 100, 200), (1, 100, 200)]


def test_a_planner_that_goes_on_after_a_problem_recovers(planning: Planning, store: StoreDouble) -> None:
    fill(store, 30)
    planner = planning.planner()
    planner.fail(UnavailableError("no controller"))
    planner.recover()
    assert planning.ranges(0) == []
    assert planner.step(0)
    assert planning.ranges(1) == [(0, 0, 100), (1, 0, 100)]


def test_another_file_in_the_directory_is_no_manifest(planning: Planning, store: StoreDouble) -> None:
    fill(store, 10)
    planning.planner().step(None)
    (planning.directory / manifest_name(1)).write_text(json.dumps({"something": "else"}))
    with pytest.raises(CorruptError, match="is not a manifest"):
        planning.planner()


def test_plans_hold_the_cut_where_they_end(planning: Planning, store: StoreDouble) -> None:
    fill(store, 10)
    planning.planner().step(None)
    head = json.loads((planning.directory / manifest_name(0)).read_text().splitlines()[0])
    assert head["end"] == cut_text(store.stream.tail())

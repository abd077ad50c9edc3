"""The thread that plans for queries, with queries that say what a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.model.errors import IllegalStateError, UnavailableError
from headrace.spark import manifest_planner
from headrace.spark.engines import manifest_thread
from headrace.spark.engines.manifest_thread import ManifestThread, plan_for_queries
from headrace.spark.manifest_planner import ManifestPlanner
from headrace.spark.manifests import manifest_name, partition_of_line
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.plan_files import LocalFiles


class Query:
    """Has finished a batch of the plans, by default the first one; with None it has not said so yet."""

    runId = "run"

    def __init__(self, url: str, finished: int | None = 0) -> None:
        self.url = url
        self.finished = finished
        self.is_stopped = False

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        if self.finished is None:
            return None
        source = {"description": f"FileStreamSource[{self.url}]", "endOffset": {"logOffset": self.finished}}
        return {"sources": [source]}

    def stop(self) -> None:
        self.is_stopped = True


class Session:
    """A session whose next lists of queries are `errors`."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(_jsc=object())
        self.streams = self
        self.queries: list[Query] = []
        self.errors: list[Exception] = []

    @property
    def active(self) -> list[Query]:
        if self.errors:
            raise self.errors.pop(0)
        return self.queries


class Files(LocalFiles):
    """Cannot be written to while `is_broken`."""

    is_broken = False

    def create(self, name: str, data: bytes) -> bool:
        if self.is_broken:
            raise UnavailableError("503 SlowDown")
        return super().create(name, data)


class Directory:
    """A directory of plans over a stream of 30 batches, and the threads that plan in it."""

    def __init__(self, store: StoreDouble, path: Path) -> None:
        self.store = store
        self.path = path
        self.spark: Any = Session()
        self.planners: list[ManifestPlanner] = []
        self.threads: list[ManifestThread] = []
        for number in range(30):
            store.stream.append(number % 2 / 2, b"event")

    def planner(self) -> ManifestPlanner:
        where = {"controller": self.store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
        options = read_options(where | {"approx_bytes_per_trigger": "20", "patience_s": "1"})
        self.planners.append(ManifestPlanner(MicroBatches(options), Files(self.path)))
        return self.planners[-1]

    def thread(self, planner: ManifestPlanner, *queries: Query) -> ManifestThread:
        self.spark.queries = list(queries)
        self.threads.append(ManifestThread(self.spark, planner))
        return self.threads[-1]

    def opened(self) -> ManifestThread:
        """As a call of `read_stream` does it."""
        self.threads.append(plan_for_queries(self.spark, self.planner()))
        return self.threads[-1]

    def plan(self, number: int) -> str:
        """The first line for a task, when the plan is there."""
        file = self.path / manifest_name(number)
        wait_until(file.exists)
        return file.read_text().splitlines()[-1]


@pytest.fixture
def directory(store: StoreDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    for module in (manifest_planner, manifest_thread):
        monkeypatch.setattr(module, "REPEAT_S", 0.05)
    found = Directory(store, tmp_path)
    yield found
    for thread in found.threads:
        thread.stop()
    for planner in found.planners:
        planner.batches.close()
    manifest_thread._running.clear()


def wait_until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("queries", [1, 2])
def test_two_queries_over_one_directory_are_refused(directory: Directory, queries: int) -> None:
    """The faster one would have plans deleted that the other has not read."""
    planner = directory.planner()
    planner.open()
    directory.thread(planner, *[Query(planner.files.url) for _ in range(queries)])
    if queries == 1:
        assert partition_of_line(directory.plan(1))
    else:
        with pytest.raises(UnavailableError, match="2 queries read the plans in"):
            partition_of_line(directory.plan(1))


def test_a_directory_that_fails_ends_only_its_queries(directory: Directory) -> None:
    planner = directory.planner()
    planner.open()
    planner.files.is_broken = True  # type: ignore[attr-defined]
    own, starting, other = Query(planner.files.url), Query(planner.files.url, None), Query("file:/others")
    thread = directory.thread(planner, own, starting, other)
    wait_until(lambda: own.is_stopped)
    thread.stop()
    assert not starting.is_stopped, "it is not known what it reads"
    assert not other.is_stopped
    with pytest.raises(UnavailableError, match="SlowDown"), thread.raising_problem():
        pass
    with pytest.raises(UnavailableError, match="SlowDown"), thread.raising_problem():
        raise ValueError("what the query says")


def test_a_failed_call_to_spark_is_repeated(directory: Directory) -> None:
    planner = directory.planner()
    planner.open()
    directory.spark.errors = [ConnectionResetError("one call failed")]
    directory.thread(planner, Query(planner.files.url))
    assert partition_of_line(directory.plan(1))


def test_calls_to_spark_that_keep_failing_fail_the_query(directory: Directory) -> None:
    planner = directory.planner()
    planner.open()
    directory.spark.errors = [ConnectionResetError("all calls fail")] * 10_000
    directory.thread(planner, Query(planner.files.url))
    with pytest.raises(UnavailableError, match="all calls fail"):
        partition_of_line(directory.plan(1))


def test_a_failed_replacement_is_repeated(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a problem, when the query is started again over the same DataFrame."""
    planner = directory.planner()
    planner.open()
    query = Query(planner.files.url)
    directory.store.refuse("next-cut", 503, times=1000)
    directory.thread(planner, query)
    with pytest.raises(UnavailableError, match="could not be planned"):
        partition_of_line(directory.plan(1))
    directory.store.forgive()
    replace, errors = planner.files.replace, [UnavailableError("503 SlowDown")]

    def fail_once(name: str, data: bytes) -> None:
        if errors:
            raise errors.pop()
        replace(name, data)

    monkeypatch.setattr(planner.files, "replace", fail_once)
    directory.spark.queries = []
    wait_until(lambda: '"problem":null' in directory.plan(1))
    query.finished = 1
    directory.spark.queries = [query]
    assert partition_of_line(directory.plan(2))


def test_a_new_planner_knows_what_the_former_one_planned(directory: Directory) -> None:
    """The former one may be planning when its query is stopped and `read_stream` is called again."""
    former = directory.opened()
    answer, asked = directory.store.answer, threading.Event()

    def slow(method: str, path: str, *rest: Any) -> Any:
        if path.endswith("next-cut"):
            asked.set()
            time.sleep(0.5)
        return answer(method, path, *rest)

    directory.store.answer = slow  # type: ignore[assignment]
    query = Query(former.planner.files.url)
    directory.spark.queries = [query]
    wait_until(asked.is_set)
    directory.spark.queries = []
    directory.opened()
    assert (directory.path / manifest_name(1)).exists()
    query.finished = 1
    directory.spark.queries = [query]
    assert partition_of_line(directory.plan(2))


def test_a_planner_that_cannot_be_opened_leaves_the_former_one(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = directory.opened()

    def fail(planner: ManifestPlanner) -> None:
        raise UnavailableError("no controller")

    with monkeypatch.context() as patch:
        patch.setattr(ManifestPlanner, "open", fail)
        with pytest.raises(UnavailableError):
            directory.opened()
    directory.threads += manifest_thread._running.values()
    directory.spark.queries = [Query(former.planner.files.url)]
    assert partition_of_line(directory.plan(1))


def test_a_query_that_would_never_read_on_is_ended(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trigger(availableNow=True), and a checkpoint that cannot be asked."""
    monkeypatch.setattr(manifest_thread, "checkpoint_of", lambda query: "hdfs://name/checkpoint")
    monkeypatch.setattr(manifest_thread, "is_available_now", lambda query: True)
    directory.planner().open()
    planner = directory.planner()
    planner.open()
    query = Query(planner.files.url)
    thread = directory.thread(planner, query)
    wait_until(lambda: query.is_stopped)
    with pytest.raises(IllegalStateError, match="hdfs://name/checkpoint"), thread.raising_problem():
        pass

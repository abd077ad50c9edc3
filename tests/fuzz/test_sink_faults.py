"""The parts of the search `spark-sink` that need no Spark: when faults happen, and what the check of a copy finds."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fuzz import sink_streams
from fuzz.controller_gate import Request
from fuzz.randomness import seed_range
from fuzz.sink_faults import ALL, OBSERVED, OF_SPARK, ON_CLUSTERS, Fault, RunWatch
from fuzz.sink_streams import CopiedStreams
from fuzz.spark_engines import ROOT, VERSIONS, WITHOUT_SPARK, Engine, NoEngineError, find_engine
from fuzz.spark_sink import make_plan

COMMIT = Request("POST", "/v1/scopes/s/streams/out/commit-sets", b"{}", 1)
ANSWERED = Request("POST", "/v1/scopes/s/streams/out/commit-sets", b"{}", 1, forwarded=True)


@dataclass
class Happenings:
    """Notes what happens; the first `refusals` times nothing does."""

    refusals: int = 0
    names: list[str] = field(default_factory=list)
    is_killed: bool = False

    def happen(self, fault: Fault, request: Request) -> bool:
        self.refusals -= 1
        if self.refusals < 0:
            self.names.append(fault.name)
            self.is_killed = fault.name.startswith("driver")
        return self.refusals < 0

    def watching(self, *faults: Fault) -> RunWatch:
        return RunWatch(Path(), faults, self.happen, lambda: self.is_killed)


def test_a_fault_happens_once_at_its_request() -> None:
    seen = Happenings()
    watch = seen.watching(Fault("store", "commit", 2))
    assert [watch.watch(request) for request in (COMMIT, ANSWERED, COMMIT)] == [True] * 3
    assert seen.names == []
    assert [watch.watch(request) for request in (ANSWERED, COMMIT, ANSWERED)] == [True] * 3
    assert seen.names == ["store"]
    assert watch.left == []


def test_a_killed_driver_gets_no_answer() -> None:
    seen = Happenings()
    watch = seen.watching(Fault("driver-before-commit", "commit", 1, is_before=True), Fault("store", "commit", 1))
    assert not watch.watch(COMMIT)
    assert watch.watch(ANSWERED), "the requests of tasks that outlive it are answered"
    assert seen.names == ["driver-before-commit"]
    assert [fault.name for fault in watch.left] == ["store"]


def test_what_could_not_happen_is_tried_again() -> None:
    seen = Happenings(refusals=2)
    watch = seen.watching(Fault("merge", "commit", 1))
    for _ in range(3):
        assert watch.watch(ANSWERED)
    assert seen.names == ["merge"]


def test_a_problem_of_a_fault_is_kept() -> None:
    def happen(fault: Fault, request: Request) -> bool:
        raise AssertionError("the store does not come back")

    watch = RunWatch(Path(), [Fault("store", "commit", 1, delay_s=0.001)], happen, lambda: False)
    assert watch.watch(ANSWERED)
    watch.join()
    assert [str(problem) for problem in watch.problems] == ["the store does not come back"]


def test_attempts_that_write_are_known_by_label(tmp_path: Path) -> None:
    watch = RunWatch(tmp_path, [], Happenings().happen, lambda: False)
    path = "/v1/scopes/s/streams/out/transactions"
    for attempt in (7, 9):
        body = json.dumps({"label": f"a-query/3/0/{attempt}/mark"}).encode()
        watch.watch(Request("POST", path, body, 1, forwarded=True))
    assert watch.attempts == {(3, 0, 7), (3, 0, 9)}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["began-3-0-7", "began-3-0-9"]


@pytest.mark.parametrize("version", VERSIONS)
def test_ten_seeds_have_every_kind_of_fault(version: str) -> None:
    plans = [make_plan(Engine(version, Path("python")), seed, 2) for seed in range(1, 11)]
    of_spark = () if version == WITHOUT_SPARK else (*OF_SPARK, *ON_CLUSTERS)
    wanted = {fault for fault in ALL if fault not in (*OBSERVED, *OF_SPARK, *ON_CLUSTERS)} | set(of_spark)
    assert {fault.name for plan in plans for run in plan.runs for fault in run} == wanted
    assert {plan.form for plan in plans} == set(Engine(version, Path("python")).forms)
    assert {plan.is_ordered for plan in plans} == {plan.on_cluster for plan in plans} == {False, True}
    assert all(len(plan.runs) == 3 for plan in plans)


def test_a_seed_has_one_plan() -> None:
    engine = Engine("4.1", Path("python"))
    assert make_plan(engine, 5, 2) == make_plan(engine, 5, 2) != make_plan(engine, 7, 2)


def test_only_the_named_faults_are_planned() -> None:
    plan = make_plan(Engine("4.1", Path("python")), 1, 3, ["store"])
    assert [[fault.name for fault in run] for run in plan.runs] == [["store"]]
    assert not plan.fails_tasks


def test_a_missing_spark_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(NoEngineError, match=r"no Spark 4\.3: .*run `make .venv-spark-4.3/.installed`"):
        find_engine("4.3", tmp_path)


def test_seeds_are_a_number_or_a_range() -> None:
    assert list(seed_range("4")) == [4]
    assert list(seed_range("4-6")) == [4, 5, 6]
    with pytest.raises(ArgumentTypeError, match="4- are no seeds"):
        seed_range("4-")


def test_the_command_line_imports_no_decoder() -> None:
    """The decoders are instrumented when they are imported, which is later."""
    code = "import sys, fuzz.__main__; print([name for name in sys.modules if name.startswith('headrace')])"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"


class Copy:
    """A client that knows what a copy made of 14 events looks like."""

    def __init__(self, numbers: Sequence[int], open_labels: Sequence[str] = ()) -> None:
        self._numbers = numbers
        opened = [SimpleNamespace(label=label) for label in open_labels]
        transactions = SimpleNamespace(list_open=lambda scope, stream: opened)
        self.admin = SimpleNamespace(
            create_scope=lambda scope: None,
            create_stream=lambda *names, **options: None,
            stream_cut=lambda *names, **options: None,
            transactions=transactions,
        )

    @contextmanager
    def reader(self, *names: str, **options: object) -> Iterator[list[SimpleNamespace]]:
        yield [SimpleNamespace(event=b"%08d" % number) for number in self._numbers]

    def streams(self) -> CopiedStreams:
        made = CopiedStreams(cast(Any, self), "s")
        made.written = 14
        return made


SWAPPED = [0, 8, *range(2, 8), 1, *range(9, 14)]


def test_a_right_copy_passes() -> None:
    Copy([*range(7, 14), *range(7)]).streams().check(is_ordered=False)
    Copy([3, 2, *range(2), *range(4, 14)]).streams().check(is_ordered=True)
    Copy(SWAPPED).streams().check(is_ordered=False)


@pytest.mark.parametrize(
    ("numbers", "labels", "message"),
    [
        (range(13), [], r"1 events are missing: \[13\]; 0 too often"),
        ([*range(14), 5], [], r"0 events are missing: \[\]; 1 too often: \[5\]"),
        (SWAPPED, [], r"events of key 1 are not in order: \[8, 1\]"),
        (range(14), ["q/3/0/1"], r"1 transactions are still open: \['q/3/0/1'\]"),
    ],
)
def test_a_wrong_copy_is_found(
    numbers: Sequence[int], labels: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_streams, "ABORTED_WITHIN_POLLS", 1)
    with pytest.raises(AssertionError, match=message):
        Copy(list(numbers), labels).streams().check(is_ordered=True)

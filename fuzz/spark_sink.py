"""A query copies a stream to another one, exactly once, while its driver, its tasks and the system below it are killed.

Meanwhile the source is split, merged and truncated behind the query, and the target is scaled. Everything happens at
requests to the controller that a seed chooses. The query is started again until it ends. Then each event must be there
once, and no transaction may be open.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fuzz.controller_gate import Request
from fuzz.processes import Process, below, kill_group, kill_nine, owner_of_port
from fuzz.randomness import Random
from fuzz.sink_faults import ALL, CHANGES, CONTROLLER, DRIVER, OF_SPARK, ON_CLUSTERS, OTHERS, Fault, RunWatch, planned
from fuzz.sink_files import FAILED, OVERLAPPED
from fuzz.sink_stack import SinkStack
from fuzz.sink_streams import CopiedStreams
from fuzz.spark_engines import Engine, Form, SparkCluster
from headrace.client import connect
from headrace.model.errors import ConflictError

RUN_S_MAX: Final = 1800
"""Only turns a hang into a failure."""

FAILED_RUNS_MAX: Final = 3
MORE_MAX: Final = 6
"""How often a run gets more events if what is planned for it has not happened yet."""

_POLL_S: Final = 1.0
_AWAY: Final = re.compile(r"UnavailableError|does not answer|Python worker failed to connect back")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one copy goes through: the faults of each run, of which the last one has no end of its driver."""

    form: Form
    runs: Sequence[Sequence[Fault]]
    is_ordered: bool = False
    fails_tasks: bool = False
    on_cluster: bool = False

    def __str__(self) -> str:
        what = [self.form, "cluster with speculation" if self.on_cluster else "local"]
        what += ["ordered"] * self.is_ordered + ["failing tasks"] * self.fails_tasks
        return ", ".join(what)


@dataclass(slots=True)
class Outcome:
    """What a copy went through."""

    plan: Plan
    events: int = 0
    runs: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        happened = ", ".join(f"{name} {count}" for name, count in sorted(self.happened.items()))
        return f"{self.plan}: {self.events} events once, {self.runs} runs; {happened}"


def make_plan(engine: Engine, seed: int, kills: int, names: Sequence[str] = ()) -> Plan:
    """The plan of a seed: `kills` ends of the driver, and each other fault once. `names`: only these faults.

    Consecutive seeds take turns in what they are: on a cluster or not, the form, and which ends of the driver.
    """
    random = Random(seed)
    on_cluster = seed % 2 == 0
    impossible: tuple[str, ...] = () if on_cluster and engine.has_spark else ON_CLUSTERS
    impossible += () if engine.has_spark else OF_SPARK
    chosen = [name for name in names or ALL if name not in impossible]
    ends = [name for name in DRIVER if name in chosen]
    runs: list[list[Fault]] = [[] for _ in range(kills + 1 if ends else 1)]
    for name in (name for name in chosen if name in (*CHANGES, *OTHERS, *ON_CLUSTERS)):
        random.choice(runs).append(planned(name, random))
    points = [name for name in CONTROLLER if name in chosen]
    for run in runs if points else ():
        run.append(planned(points.pop(random.randrange(len(points))), random)) if points else None
    for number, run in enumerate(runs[:-1]):
        run.append(planned(ends[(seed * kills + number) % len(ends)], random))
    return Plan(
        form=engine.forms[seed // 2 % len(engine.forms)],
        runs=runs,
        is_ordered=random.random() < 1 / 2,
        fails_tasks="failed-task" in chosen,
        on_cluster=on_cluster,
    )


def copy_under_faults(
    stack: SinkStack, engine: Engine, scope: str, directory: Path, plan: Plan, cluster: SparkCluster | None = None
) -> Outcome:
    """Copies a stream of a scope, which it creates, and checks the copy. A plan on a cluster needs `cluster`.

    Raises:
        AssertionError: an event is missing or there twice, out of order, or a transaction is open; or a run fails, or
            no task has failed as planned.
    """
    with connect(stack.own_gate.url, retry_s=RUN_S_MAX) as client, _unwatched(stack):
        streams = CopiedStreams(client, scope)
        copy = _Copy(stack, engine, scope, directory, plan, cluster if plan.on_cluster else None, streams)
        left: list[Fault] = []
        for faults in plan.runs:
            left = copy.run([*left, *faults])
        streams.check(is_ordered=plan.is_ordered)
        copy.outcome.events = streams.written
        if copy.lacks_failed_task():
            raise AssertionError("no task has failed after it had begun to write")
    return copy.outcome


@contextmanager
def _unwatched(stack: SinkStack) -> Iterator[None]:
    try:
        yield
    finally:
        stack.gate.watch = lambda request: True


class _Copy:
    """Runs of the query from one checkpoint."""

    def __init__(
        self,
        stack: SinkStack,
        engine: Engine,
        scope: str,
        directory: Path,
        plan: Plan,
        cluster: SparkCluster | None,
        streams: CopiedStreams,
    ) -> None:
        self.outcome = Outcome(plan)
        self._stack, self._directory, self._cluster, self._streams = stack, directory, cluster, streams
        self._engine = engine
        self._command = [str(engine.python), "-m", engine.query_module, "--controller", stack.gate.url]
        self._command += ["--scope", scope, "--directory", str(directory), "--form", plan.form]
        self._command += ["--ordered"] * plan.is_ordered
        self._command += ["--fail-first-attempts"] * plan.fails_tasks
        self._command += ["--speculation"] * plan.on_cluster
        self._command += [] if cluster is None else ["--master", cluster.url]

    def run(self, faults: Sequence[Fault]) -> list[Fault]:
        """Starts the query, and waits for its end or its kill. Returns what is left for the next run.

        A query may fail because a part of the system is away for longer than a client waits. Then it starts again.
        """
        for _ in range(FAILED_RUNS_MAX):
            faults, has_failed = self._run(faults)
            if not has_failed:
                return [fault for fault in faults if fault.name not in DRIVER]
        raise AssertionError(f"{FAILED_RUNS_MAX} runs in a row failed")

    def _run(self, faults: Sequence[Fault]) -> tuple[list[Fault], bool]:
        """What is left, and whether the query failed."""
        is_replay = self._is_replay()
        self._streams.write()
        log_file = self._directory / f"query-{self.outcome.runs}.log"
        with log_file.open("w") as log:
            process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True, env=self._engine.environment
            )
        driver = _Driver(process)
        watch = RunWatch(
            self._directory,
            faults,
            lambda fault, request: self._happen(driver, fault, request),
            lambda: driver.is_killed,
        )
        self._stack.gate.watch = watch.watch
        try:
            has_failed = self._await_end(driver, watch, log_file)
        finally:
            driver.end()
            watch.join()
        self._count(watch, is_replay=is_replay)
        self.outcome.happened["failed-query"] += has_failed
        return watch.left, has_failed

    def _await_end(self, driver: _Driver, watch: RunWatch, log_file: Path) -> bool:
        """Whether the query failed, which it may only while something is away."""
        finish, more = self._directory / "finish", 0
        finish.unlink(missing_ok=True)
        for _ in range(round(RUN_S_MAX / _POLL_S)):
            if watch.problems:
                raise watch.problems[0]
            code = driver.process.poll()
            if code is not None:
                has_failed = code != 0 and not driver.is_killed
                if has_failed and not _AWAY.search(log_file.read_text()):
                    raise AssertionError(f"the query failed with code {code}: {log_file.read_text()[-6000:]}")
                return has_failed
            if not finish.exists() and self._streams.is_copied():
                if (watch.left or self.lacks_failed_task()) and more < MORE_MAX:
                    more += 1
                    self._streams.write()
                else:
                    finish.touch()
            threading.Event().wait(_POLL_S)
        self._streams.check(is_ordered=False)
        raise AssertionError(f"the query does not end: {log_file.read_text()[-6000:]}")

    def lacks_failed_task(self) -> bool:
        """Whether tasks fail after they have begun to write, and none has yet."""
        has_failed = self.outcome.happened["failed-task"] or any(self._directory.glob(f"{FAILED}-*"))
        return self.outcome.plan.fails_tasks and not has_failed

    def _happen(self, driver: _Driver, fault: Fault, request: Request) -> bool:
        """Make a fault happen; whether it did."""
        name = fault.name
        if name in DRIVER:
            driver.kill()
        elif name in CONTROLLER:
            return self._stack.kill_controller_at(name.removeprefix("controller-"))
        elif name == "controller-random":
            self._stack.kill_controller()
        elif name == "store":
            self._stack.kill_store()
        elif name == "worker":
            return self._kill_worker(driver, request)
        elif name == "executor":
            return self._kill_executor()
        else:
            return self._change(name, request)
        return True

    def _kill_worker(self, driver: _Driver, request: Request) -> bool:
        pid = owner_of_port(request.client_port, self._processes(driver))
        if pid is not None:
            kill_nine(pid)
        return pid is not None

    def _kill_executor(self) -> bool:
        executors = [] if self._cluster is None else self._cluster.executors()
        if executors:
            kill_nine(executors[0].pid)
        return bool(executors)

    def _processes(self, driver: _Driver) -> list[Process]:
        return below(driver.process.pid) + ([] if self._cluster is None else self._cluster.processes())

    def _change(self, name: str, request: Request) -> bool:
        try:
            if name == "truncate":
                return self._truncate(request)
            if name == "scale-target":
                self._streams.split("out")
            else:
                (self._streams.split if name == "split" else self._streams.merge)()
        except ConflictError:
            return False  # another change is not done
        self._streams.write()
        return True

    def _truncate(self, request: Request) -> bool:
        """Spark has committed all batches before the one that is to be committed now, so it never reads them again."""
        body = json.loads(request.body)
        committed = self._streams.committed_epoch(body["writer"])
        if committed is not None and committed >= body["epoch"]:
            return False
        cut = self._streams.cut_behind(self._streams.copied())
        if cut is not None:
            self._streams.truncate(cut)
        return cut is not None

    def _is_replay(self) -> bool:
        """Whether the next run repeats a batch that the sink has committed: what the checkpoint and the sink say."""
        checkpoint = self._directory / "checkpoint"
        planned, committed = (
            max((int(each.name) for each in (checkpoint / name).glob("[0-9]*")), default=-1)
            for name in ("offsets", "commits")
        )
        if planned <= committed:
            return False
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        last = self._streams.committed_epoch(f"spark:{query}")
        return last is not None and last >= planned

    def _count(self, watch: RunWatch, *, is_replay: bool) -> None:
        happened = self.outcome.happened
        self.outcome.runs += 1
        done = [each.name for each in watch.done]
        asked = [name for name in done if name in CONTROLLER]
        if self._stack.spare_controller() and asked:  # the query has committed no set since
            done.remove(asked[-1])
        happened.update(done)
        happened["recognised-replay"] += is_replay
        failed = list(self._directory.glob(f"{FAILED}-*"))
        happened["failed-task"] += len(failed)
        for file in failed:
            file.unlink()
        for file in self._directory.glob(f"{OVERLAPPED}-*"):
            batch = int(file.name.partition("-")[2])
            wrote = [attempt for attempt in watch.attempts if attempt[:2] == (batch, 0)]
            happened["speculation"] += len(wrote) > 1
            file.unlink()


class _Driver:
    """The process group of a query."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.is_killed = False

    def kill(self) -> None:
        """As planned."""
        self.is_killed = True
        kill_group(self.process.pid)

    def end(self) -> None:
        """Kills what is left of the group: the JVM may outlive Python for a moment."""
        kill_group(self.process.pid)
        self.process.wait()

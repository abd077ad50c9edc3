"""The faults of a copy, and when they happen: at requests to the controller, so that they do not depend on time."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fuzz.controller_gate import Request
from fuzz.randomness import Random
from fuzz.sink_files import BEGAN, COMMIT_POINTS

Kind = Literal["commit", "begin", "append", "any"]

DRIVER: Final = ("driver-before-commit", "driver-after-commit", "driver-begin", "driver-append", "driver-random")
"""Ends of the driver. Each ends a run of the query."""

CHANGES: Final = ("split", "merge", "truncate", "scale-target")
"""A split, a merge and a truncation of the source, and a scale of the target."""

CONTROLLER: Final = tuple(f"controller-{point}" for point in COMMIT_POINTS)
"""The controller kills itself while it commits a set."""

OTHERS: Final = ("worker", "store", "controller-random")
"""kill -9 of a task's Python process over its appends, of the segment store, and of the controller after a commit."""

OF_SPARK: Final = ("worker",)
ON_CLUSTERS: Final = ("executor",)
OBSERVED: Final = ("failed-task", "speculation", "recognised-replay", "failed-query")
"""What a query tells, and what its checkpoint tells."""

ALL: Final = (*DRIVER, *CHANGES, *CONTROLLER, *OTHERS, *ON_CLUSTERS, *OBSERVED)

_RANDOM_REQUESTS_MAX: Final = 30
_COUNT_MAX: Final = 3
_PATHS: Final[dict[Kind, re.Pattern[str]]] = {
    "commit": re.compile(r"POST .*/streams/out/commit-sets"),
    "begin": re.compile(r"POST .*/streams/out/transactions"),
    "append": re.compile(r"POST .*/streams/out/transactions/[0-9a-f]+/segments"),
    "any": re.compile(r".*"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """It happens `delay_s` after a run's `count`-th request of a kind, from 1; before that is forwarded, or after."""

    name: str
    kind: Kind
    count: int
    delay_s: float = 0.0
    is_before: bool = False


def planned(name: str, random: Random) -> Fault:
    """A fault of this name at a random time."""
    count = random.randint(1, _COUNT_MAX)
    if name == "driver-random":
        return Fault(name, "any", random.randint(1, _RANDOM_REQUESTS_MAX), random.random())
    if name in ("driver-before-commit", "truncate", *CONTROLLER):
        return Fault(name, "commit", count, is_before=True)
    if name == "driver-begin":
        return Fault(name, "begin", count)
    if name in ("driver-append", "worker"):
        return Fault(name, "append", count, random.random() * 0.1)
    if name in ("executor", "store"):
        return Fault(name, "append", count, random.random() * 0.5)
    if name == "controller-random":
        return Fault(name, "commit", count, random.random() * 0.5)
    return Fault(name, "commit", count, 0.0 if name in DRIVER else random.random() * 0.3)


Happen = Callable[[Fault, Request], bool]
"""Makes a fault happen; whether it did. If not, it is tried again at the next request of its kind."""


@dataclass(slots=True)
class RunWatch:
    """Watches the requests of one run, and makes faults happen when it is their time. Each does so once."""

    directory: Path
    faults: Sequence[Fault]
    happen: Happen
    is_killed: Callable[[], bool]
    done: list[Fault] = field(default_factory=list)
    problems: list[BaseException] = field(default_factory=list)
    attempts: set[tuple[int, int, int]] = field(default_factory=set)
    """The attempts that have begun a transaction, as labels tell them: batch, partition, and the attempt's number."""

    _seen: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _begun: set[Fault] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def watch(self, request: Request) -> bool:
        """Make the faults happen that are due at a request; whether the gate goes on with it."""
        if self.is_killed():
            return True  # executors outlive their driver
        now: list[Fault] = []
        with self._lock:
            for kind in (kind for kind, path in _PATHS.items() if path.fullmatch(f"{request.method} {request.path}")):
                self._seen[kind, request.forwarded] += 1
                if kind == "begin" and request.forwarded:
                    self._note_label(request)
                now += [fault for fault in self.faults if self._is_time(fault, kind, request)]
            self._begun.update(now)
        for fault in now:
            if fault.delay_s:
                self._start(fault, request)
            else:
                self._try(fault, request)
        return not self.is_killed()

    @property
    def left(self) -> list[Fault]:
        """What has not happened."""
        return [fault for fault in self.faults if fault not in self.done]

    def join(self) -> None:
        """Waits for what is happening."""
        for thread in self._threads:
            thread.join()

    def _is_time(self, fault: Fault, kind: Kind, request: Request) -> bool:
        if fault.kind != kind or fault.is_before == request.forwarded or fault in self._begun:
            return False
        return self._seen[kind, request.forwarded] >= fault.count

    def _start(self, fault: Fault, request: Request) -> None:
        def later() -> None:
            threading.Event().wait(fault.delay_s)
            self._try(fault, request)

        thread = threading.Thread(target=later, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _try(self, fault: Fault, request: Request) -> None:
        try:
            happened = self.happen(fault, request)
        except BaseException as problem:  # noqa: BLE001 - it is raised in the thread of the run
            self.problems.append(problem)
            return
        with self._lock:
            (self.done.append if happened else self._begun.discard)(fault)

    def _note_label(self, request: Request) -> None:
        batch, partition, attempt = map(int, str(json.loads(request.body)["label"]).split("/")[1:4])
        self.attempts.add((batch, partition, attempt))
        (self.directory / f"{BEGAN}-{batch}-{partition}-{attempt}").touch()

#!/usr/bin/env python3
"""Runs everything that takes longer than `make test` may, and writes one report.

`make nightly` calls it. A step that fails does not stop the later ones. The exit code is 1 if a step failed. The report
is `build/nightly/report.md`, and the whole output of each step is next to it. `--only TEXT` runs the steps whose names
contain the text; the report keeps the outcomes of the others, each with the revision that it ran on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fuzz.other_code import FORMER_RELEASE

ROOT: Final = Path(__file__).resolve().parents[1]
REPORTS: Final = ROOT / "build" / "nightly"
SPARKS: Final = ("3.5", "4.0", "4.1", "4.3")
REPORTED_LINES_MAX: Final = 100

_PYTHON: Final = (sys.executable, "-m")
_MAKE: Final = ("make", "--no-print-directory")
_SECURE: Final = ("env", "HEADRACE_TEST_STACK=secure")
_SHARED_STACKS: Final = tuple(f"tests/{name}" for name in ("client", "e2e", "guides", "foreign_client", "spark"))
"""Tests whose stacks demand TLS and tokens then."""
_JAVA: Final = ("--client", "java", "--client", "java-and-python")
_HANDSHAKES: Final = (
    "--deselect",
    "tests/foreign_client/test_events.py::test_killed_stores_lose_and_double_no_event_of_their_client",
)
"""The Rust client ends if a store is killed during a TLS handshake."""


@dataclass(frozen=True, slots=True)
class Step:
    """`reported_lines` of the end of its output are in the report, all of it in its log."""

    name: str
    command: Sequence[str]
    reported_lines: int = 5

    @property
    def log(self) -> Path:
        return REPORTS / f"{self.name}.log"

    @property
    def stored_outcome(self) -> Path:
        return REPORTS / f"{self.name}.json"

    @property
    def shown_command(self) -> str:
        return " ".join(["python" if part == sys.executable else part for part in self.command])


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended: its exit code, its time in seconds, when it began, and what it ran on."""

    exit_code: int
    seconds: float
    started: str
    revision: str


STEPS: Final = (
    Step(
        "simulation",
        (*_PYTHON, "simulation", "run", "--faults", "3000000", "--each", "1000"),
        reported_lines=REPORTED_LINES_MAX,
    ),
    Step("deliberate-bugs", (*_PYTHON, "simulation", "mutations"), reported_lines=30),
    Step(
        "whole-stores",
        (*_PYTHON, "simulation", "stores", "run", "--seeds", "0-1999"),
        reported_lines=REPORTED_LINES_MAX,
    ),
    Step("deliberate-bugs-of-stores", (*_PYTHON, "simulation", "stores", "mutations")),
    Step("mutants", (sys.executable, "scripts/run_mutants.py", "--minutes", "60"), reported_lines=REPORTED_LINES_MAX),
    Step(
        "random-examples",
        (*_PYTHON, "pytest", "-m", "hypothesis and not nightly", "--hypothesis-profile", "random"),
        reported_lines=REPORTED_LINES_MAX,
    ),
    Step("random-segments", (*_PYTHON, "fuzz", "segments", "--seeds", "1-2000"), reported_lines=40),
    Step("random-lost-volumes", (*_PYTHON, "fuzz", "lost-volumes", "--seeds", "1-1000"), reported_lines=40),
    Step("random-reads", (*_PYTHON, "fuzz", "reads", "--seeds", "1-500"), reported_lines=50),
    Step("random-tables", (*_PYTHON, "fuzz", "tables", "--seeds", "1-300"), reported_lines=40),
    Step("random-clients", (*_PYTHON, "fuzz", "clients", "--seeds", "1-2000"), reported_lines=50),
    Step("random-controllers", (*_PYTHON, "fuzz", "controller", "--seeds", "1-3000"), reported_lines=40),
    Step("hostile-clients", (*_PYTHON, "fuzz", "hostile-clients", "--seconds", "120")),
    Step("six-kills", (*_PYTHON, "fuzz", "lost-stores", "--minutes", "5", "--faults", *["kill_one"] * 6)),
    Step("lost-stores", (*_PYTHON, "fuzz", "lost-stores", "--minutes", "15"), reported_lines=20),
    Step(
        "mixed-releases",
        (*_PYTHON, "fuzz", "lost-stores", "--minutes", "10", "--mixed-with", FORMER_RELEASE),
        reported_lines=20,
    ),
    Step("slow-tests", (*_PYTHON, "pytest", "-m", "nightly and not spark")),
    *(
        Step(f"spark-sink-{spark}", (*_PYTHON, "fuzz", "spark-sink", "--spark", spark, "--minutes", "5"), 20)
        for spark in SPARKS
    ),
    *(Step(f"spark-tests-{spark}", (*_MAKE, f"test-spark-{spark}")) for spark in SPARKS),
    Step("conformance", (*_MAKE, "conformance"), reported_lines=10),
    Step("secure-clients", (*_SECURE, *_PYTHON, "pytest", "-m", "not nightly", *_SHARED_STACKS, *_HANDSHAKES)),
    Step("secure-conformance", (*_SECURE, sys.executable, "scripts/run_conformance.py", *_JAVA), reported_lines=10),
    Step("rehearsal", (*_MAKE, "rehearse"), reported_lines=REPORTED_LINES_MAX),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only the steps with TEXT in their name")
    options = parser.parse_args(arguments)
    steps = [step for step in STEPS if options.only in step.name]
    if not steps:
        parser.error(f"no step has {options.only!r} in its name; there are {', '.join(step.name for step in STEPS)}")
    REPORTS.mkdir(parents=True, exist_ok=True)
    has_failed = False
    for step in steps:
        print(f"nightly: {step.name}: {step.shown_command}", flush=True)
        outcome = run_step(step)
        has_failed |= outcome.exit_code != 0
        print(f"nightly: {step.name}: {result_text(outcome)} after {outcome.seconds:.0f} s", flush=True)
        step.stored_outcome.write_text(json.dumps(asdict(outcome)))
        (REPORTS / "report.md").write_text(report())
    print(f"nightly: the report is {(REPORTS / 'report.md').relative_to(ROOT)}")
    return int(has_failed)


def run_step(step: Step) -> Outcome:
    """Run the step to its end, with its output in its log."""
    started = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    at = revision()
    started_s = time.monotonic()
    with step.log.open("wb") as log:
        ended = subprocess.run(step.command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    return Outcome(ended.returncode, time.monotonic() - started_s, started, at)


def revision() -> str:
    """The commit of the tree, with a `+` if files differ from it; `unknown` without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=8"]
    described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


def result_text(outcome: Outcome) -> str:
    return "passed" if outcome.exit_code == 0 else f"failed with exit code {outcome.exit_code}"


def report() -> str:
    """The last outcome of each step as a page: a table, and then the end of what each step has printed."""
    lines = [
        "# A nightly run",
        "",
        f"The last outcome of each step of `make nightly`, {os.cpu_count()} cores.",
        "",
        "| Step | Command | Began (UTC) | Revision | Minutes | Result |",
        "|---|---|---|---|--:|---|",
    ]
    outcomes = [
        (step, Outcome(**json.loads(step.stored_outcome.read_text()))) for step in STEPS if step.stored_outcome.exists()
    ]
    lines += [
        f"| {step.name} | `{step.shown_command}` | {outcome.started} | {outcome.revision} | {outcome.seconds / 60:.1f} "
        f"| {result_text(outcome)} |"
        for step, outcome in outcomes
    ]
    for step, _one in outcomes:
        shown = step.log.read_text(errors="replace").replace(str(ROOT), ".").splitlines()
        lines += ["", f"## {step.name}", "", "```text", *shown[-step.reported_lines :], "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.instructions`: the processor's instructions for each event, of the client and of the store.

They hardly depend on what else runs on the machine, so they show a change of a few percent that no time shows. Both
processes run below valgrind, which counts each instruction of the program outside of the kernel. A run without events
is subtracted from each. Where valgrind is not installed, nothing is counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.results import Results
from benchmarks.settings import AppendLoad, Settings

_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")
_APPENDS = re.compile(r"appends (\d+) commits (\d+)")
_STOP_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Count:
    """One run. Without valgrind the instructions are 0."""

    client: int
    store: int
    appends: int
    commits: int


def instructions_in(report: str) -> int:
    """The instructions in a report of valgrind's cachegrind; 0 if there is no such line."""
    found = _COUNTED.search(report)
    return int(found[1].replace(",", "")) if found else 0


def count_run(load: AppendLoad, *, single: bool, below: Sequence[str]) -> Count:
    """Append the load with a client and a store in processes of their own, `below` this command.

    Raises:
        subprocess.CalledProcessError: a process failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        reports = {name: Path(scratch) / name for name in ("store", "client")}
        commands = {name: [*below, f"--log-file={report}"] if below else [] for name, report in reports.items()}
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        store_command = [*commands["store"], sys.executable, "-m", "benchmarks.counted_store"]
        with subprocess.Popen(
            store_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as store:
            assert store.stdout is not None
            port = store.stdout.readline().removeprefix("ready ").strip()
            client = [*commands["client"], sys.executable, "-m", "benchmarks.counted_client"]
            arguments = [port, str(load.event_bytes), str(load.events), "single" if single else "batch"]
            try:
                subprocess.run([*client, *arguments], env=environment, check=True)
            finally:
                said, _ = store.communicate("", _STOP_TIMEOUT_S)
        if store.returncode:
            raise subprocess.CalledProcessError(store.returncode, store_command)
        found = _APPENDS.search(said)
        assert found is not None
        counts = {name: instructions_in(report.read_text()) if below else 0 for name, report in reports.items()}
        return Count(counts["client"], counts["store"], int(found[1]), int(found[2]))


def valgrind() -> list[str]:
    """The command below which instructions are counted; empty if it is not installed."""
    path = shutil.which("valgrind")
    return [path, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"] if path else []


def measure(results: Results, loads: Sequence[AppendLoad]) -> None:
    """Add the instructions of each load, with batches; for the smallest events one by one, too."""
    below = valgrind()
    if not below or not loads:
        return
    nothing = count_run(AppendLoad(loads[0].event_bytes, 0), single=False, below=below)
    for load, single in [*((load, False) for load in loads), (loads[0], True)]:
        count = count_run(load, single=single, below=below)
        name = f"instructions, {load.event_bytes:,} B events{' one by one' if single else ''}"
        results.add(f"{name}, client", (count.client - nothing.client) / load.events, "an event")
        results.add(f"{name}, store", (count.store - nothing.store) / load.events, "an event")
        appends = count.appends - nothing.appends
        results.add(f"{name}, store, of an append", (count.store - nothing.store) / appends, "an append")
        results.add(f"{name}, events in an append", load.events / appends, "events")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1, help="rounds to take medians of")
    options = parser.parse_args()
    results = Results()
    for _ in range(options.rounds):
        measure(results, Settings().counted_events)
    print(results.table() if valgrind() else "valgrind is not installed: nothing was counted")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

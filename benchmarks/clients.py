"""`python -m benchmarks.clients`: our client and the PyPI package `pravega` on the same server, in the same run.

Both write the same events with the same routing keys to streams of their own, and read the stream that ours has
written last. Each works in a process of its own; in a round all take turns. Figures are events and payload bytes per
second, and the processor time of the client's process per event. The package has a core in Rust; its Python API takes
one event per call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import machine_facts, versions
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from benchmarks.settings import KIB, MIB, AppendLoad, store_environment
from benchmarks.workloads import SCOPE
from headrace.client import Headrace, ScalingPolicy, connect
from headrace.local.running import running_stack

OURS: Final = ("ours, one by one", "ours, batches", "ours, Arrow")
READS: Final = ("read, ours, batches", "read, ours, Arrow")
THEIRS: Final = "theirs"
READ_THEIRS: Final = "read, theirs"
CACHE_BYTES: Final = 1024 * MIB
THEIR_EVENTS_MAX: Final = 20_000
"""It writes some 1,000 to 15,000 events a second."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """So many writers of one process that write to one stream of so many segments.

    The package writes at most `THEIR_EVENTS_MAX` events. It reads as many as ours.
    """

    name: str
    load: AppendLoad
    segments: int
    writers: int
    read: bool = False


SCENARIOS: Final = (
    Scenario("100 B, 2 segments", AppendLoad(100, 500_000), 2, 1, read=True),
    Scenario("1 KiB, 2 segments", AppendLoad(KIB, 128 * KIB), 2, 1, read=True),
    Scenario("100 B, one writer to 64 segments", AppendLoad(100, 500_000), 64, 1),  # the most that the package can
    Scenario("100 B, one writer to 100 segments", AppendLoad(100, 500_000), 100, 1),
    Scenario("100 B, 100 writers to one segment", AppendLoad(100, 500_000), 1, 100),
)
QUICK: Final = (
    Scenario("100 B, 2 segments", AppendLoad(100, 5_000), 2, 1, read=True),
    Scenario("100 B, one writer to 20 segments", AppendLoad(100, 5_000), 20, 1),
    Scenario("100 B, 10 writers to one segment", AppendLoad(100, 5_000), 1, 10),
)
"""Proves that the benchmark runs. Its figures mean nothing."""


def kinds(scenario: Scenario, *, theirs: bool, reads: bool = False) -> Iterator[str]:
    """What is measured, in this order. All that read read what the last kind before them has written.

    With `reads`, only what is needed to compare the reading.
    """
    yield from OURS[-1:] if reads else OURS
    if scenario.read:
        yield from READS
        if theirs:
            yield READ_THEIRS
    if theirs and not reads:
        yield THEIRS


def measure_scenario(
    results: Results,
    headrace: Headrace,
    endpoints: Mapping[str, str],
    scenario: Scenario,
    number: int,
    *,
    theirs: bool,
    reads: bool,
) -> None:
    """One round of a scenario."""
    stream = ""
    for turn, kind in enumerate(kinds(scenario, theirs=theirs, reads=reads)):
        if not kind.startswith("read"):
            stream = f"{scenario.name}-{number}-{turn}".replace(" ", "").replace(",", "-")
            headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(scenario.segments))
        controller = endpoints["grpc"] if kind in (THEIRS, READ_THEIRS) else endpoints["http"]
        print(f"  {kind}", file=sys.stderr, flush=True)
        load = scenario.load
        if kind == THEIRS:
            load = AppendLoad(load.event_bytes, min(load.events, THEIR_EVENTS_MAX))
        found = _run(kind, controller, stream, load, scenario.writers)
        if kind in (THEIRS, READ_THEIRS):
            results.add(f"{scenario.name}: {kind}, ended with an error", float(found is None), "of a round")
        if found is None:
            continue
        name, beside = f"{scenario.name}: {kind}", None
        if theirs and kind not in (THEIRS, READ_THEIRS):
            beside = f"{scenario.name}: {READ_THEIRS if kind.startswith('read') else THEIRS}"
        figures = {
            "rate": (load.events / found["seconds"], "events/s"),
            "payload": (load.events * load.event_bytes / found["seconds"] / 1e6, "MB/s"),
            "processor": (found["processor_s"] / load.events * 1e6, "us an event"),
        }
        for figure, (value, unit) in figures.items():
            results.add(f"{name}, {figure}", value, unit, beside=f"{beside}, {figure}" if beside else None)


def _run(kind: str, controller: str, stream: str, load: AppendLoad, writers: int) -> dict[str, float] | None:
    """What the client reports; None if it has failed, which it says on stderr."""
    command = [sys.executable, "-m", "benchmarks.client_process", kind, controller, stream]
    command += [str(load.event_bytes), str(load.events), str(writers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def has_package() -> bool:
    """Whether the PyPI package `pravega` is installed."""
    return importlib.util.find_spec("pravega_client") is not None


def measure_once(results: Results, directory: Path, load: AppendLoad) -> None:
    """The part of `python -m benchmarks`: one small round next to the package, or one line if it is not installed."""
    if has_package():
        measure(results, directory, (Scenario("both clients, 2 segments", load, 2, 1, read=True),), rounds=1)
    else:
        print("not compared: the package `pravega` is not installed", file=sys.stderr, flush=True)


def measure(
    results: Results, directory: Path, scenarios: tuple[Scenario, ...], rounds: int, *, reads: bool = False
) -> None:
    """All rounds on one local stack, whose data is removed afterwards."""
    theirs = has_package()
    with tempfile.TemporaryDirectory(prefix="stack-", dir=directory) as scratch, running_s3_double("free") as s3_url:
        environment = store_environment(CACHE_BYTES, 1.0, s3_url)
        with (
            running_stack(Path(scratch), segment_stores=1, grpc=True, environment=environment) as stack,
            connect(stack["endpoints"]["http"]) as headrace,
        ):
            headrace.admin.create_scope(SCOPE)
            for number in range(rounds):
                for scenario in scenarios:
                    print(f"round {number + 1} of {rounds}: {scenario.name}", file=sys.stderr, flush=True)
                    measure_scenario(
                        results, headrace, stack["endpoints"], scenario, number, theirs=theirs, reads=reads
                    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; figures mean nothing")
    parser.add_argument("--reads", action="store_true", help="only the reading; writes clients-reading.json")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    scenarios: tuple[Scenario, ...] = QUICK if options.quick else SCENARIOS
    if options.reads:
        scenarios = tuple(scenario for scenario in scenarios if scenario.read)
    rounds = 1 if options.quick else options.rounds
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    measure(results, options.output, scenarios, rounds, reads=options.reads)
    settings: dict[str, Any] = {"rounds": rounds, "scenarios": [asdict(scenario) for scenario in scenarios]}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    name = "clients-reading.json" if options.reads else "clients.json"
    (options.output / name).write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.copies`: what three copies of the log cost, beside one copy in the same round.

Two local stacks run at the same time, with one segment store and with three. They take turns within each round, so the
idle one costs next to nothing. All processes share the cores of this machine: with three copies that is the client and
three stores. Tier 2 is the S3 double of `make bench`. Processor time is that of all that a burst causes, until tier 2
has it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import workloads
from benchmarks.machine import machine_facts, versions
from benchmarks.processor_time import processor_s
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from benchmarks.settings import KIB, AppendLoad, PacedLoad, Settings
from benchmarks.store_memory import resident_bytes_of
from headrace.client import Headrace, connect
from headrace.local.running import running_stack

ROUNDS = 3
BURSTS = (AppendLoad(100, 500_000), AppendLoad(KIB, 128 * KIB), AppendLoad(10 * KIB, 20_000))
PACED = (PacedLoad(1_000, 5.0), PacedLoad(5_000, 5.0))
STORES = {"one copy": 1, "three copies": 3}
SETTINGS = Settings(segments=1)
WARM_SEGMENTS = 12
"""So many that each store gets about its share of them."""

WARM_FILL = 0.7
"""The resident memory of a warm store, of its cache."""

WARM_UPS_MAX = 20


def main() -> int:
    return compare("copies", __doc__, {name: {"segment_stores": count} for name, count in STORES.items()}, measure)


def compare(
    name: str,
    purpose: str,
    stacks: Mapping[str, Mapping[str, Any]],
    measure: Callable[[Results, str, Headrace, Mapping[str, Any], int], None],
) -> int:
    """The program `python -m benchmarks.NAME`: rounds of all stacks, which have these options of `running_stack`.

    `measure` gets the results, the name of a stack, a client and the state of it, and the number of the round.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=purpose.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path(f"build/bench/{name}.json"), help="file for the results")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    with ExitStack() as parts:
        runs = warm_stacks(parts, options.output.parent, stacks)
        for number in range(options.rounds):
            for stack_name, (headrace, stack) in runs.items():
                measure(results, stack_name, headrace, stack, number)
    written = document(
        results, machine=facts, versions=versions(), settings=asdict(SETTINGS) | {"rounds": options.rounds}
    )
    options.output.write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


def warm_stacks(
    parts: ExitStack, directory: Path, stacks: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Headrace, dict[str, Any]]]:
    """Clients and states of stacks that run at the same time, by name; `stacks` has the options of `running_stack`."""
    limits = {
        "HEADRACE_CACHE_BYTES": str(SETTINGS.cache_bytes),
        "HEADRACE_FLUSH_AGE_S": str(SETTINGS.flush_age_s),
        "HEADRACE_COMPACTION_BYTES_PER_S": "0",
        "AWS_ENDPOINT_URL_S3": parts.enter_context(running_s3_double("free")),
    }
    runs = {}
    for name, options in stacks.items():
        place = Path(parts.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        stack = parts.enter_context(running_stack(place, environment=limits, **options))
        runs[name] = parts.enter_context(connect(stack["endpoints"]["http"])), stack
        warm_up(*runs[name])
    return runs


def warm_up(headrace: Headrace, stack: Mapping[str, Any]) -> None:
    """Write until each store has used the memory of its cache: any of them may own the stream of the next burst, and
    memory that is touched for the first time would take more of its processor than the log does."""
    spread = replace(SETTINGS, segments=WARM_SEGMENTS)
    warm_bytes = WARM_FILL * SETTINGS.cache_bytes
    for number in range(WARM_UPS_MAX):
        workloads.warm_up(headrace, spread, f"warm-up-{number}")
        if all(resident_bytes_of(store["pid"]) >= warm_bytes for store in stack["segmentStores"]):
            return
    raise workloads.WrongResultError(f"after {WARM_UPS_MAX} bursts a store has still not used its cache")


def measure(results: Results, name: str, headrace: Headrace, stack: Mapping[str, Any], number: int) -> None:
    """One round of one stack."""
    is_replicated = STORES[name] > 1
    pids = [store["pid"] for store in stack["segmentStores"]]
    for load in BURSTS:
        stream, size = f"burst-{load.event_bytes}-{number}", f"{load.event_bytes} B events"
        workloads.make_stream(headrace, stream, SETTINGS.segments)
        before = [processor_s(pid) for pid in pids]
        burst = workloads.append_burst(headrace, stream, load, SETTINGS)
        # Else how much of the flush counts would depend on how long the burst takes.
        workloads.await_tier2(headrace, stream, SETTINGS)
        used = sorted((processor_s(pid) - start for pid, start in zip(pids, before, strict=True)), reverse=True)
        megabytes = load.events * load.event_bytes / 1e6
        one_copy = f"append, {size}, one copy"
        results.add(f"append, {size}, {name}", burst.mb_per_s, "MB/s", beside=one_copy if is_replicated else None)
        owner = f"processor of the owner, {size}"
        beside = f"{owner}, one copy" if is_replicated else None
        results.add(f"{owner}, {name}", used[0] * 1e3 / megabytes, "ms/MB", beside=beside)
        if is_replicated:
            replica = sum(used[1:]) / (len(used) - 1)
            name_of_replica = f"processor of a replica, {size}"
            results.add(name_of_replica, replica * 1e3 / megabytes, "ms/MB", beside=f"{owner}, one copy")
    for paced in PACED:
        stream, rate = f"paced-{paced.rate_per_s}-{number}", f"{paced.rate_per_s:,}/s of 1 KiB"
        workloads.make_stream(headrace, stream, SETTINGS.segments)
        latencies = workloads.paced_acknowledgements(headrace, stream, paced, SETTINGS)
        for part, value in (("p50", latencies.p50_ms), ("p99", latencies.p99_ms)):
            figure = f"acknowledged, {rate}, {part}"
            beside = f"{figure}, one copy" if is_replicated else None
            results.add(f"{figure}, {name}", value, "ms", beside=beside)


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m benchmarks.tls`: what TLS and delegation tokens cost, beside a plain stack in the same round.

Two local stacks with one segment store run at the same time, one of them as `headrace up --secure`. They take turns
within each round, so the idle one costs next to nothing. Client and store share the cores of this machine, so each pays
for its own side of the encryption there. Tier 2 is the S3 double of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks import workloads
from benchmarks.copies import SETTINGS, warm_stacks
from benchmarks.machine import machine_facts, versions
from benchmarks.processor_time import processor_s
from benchmarks.results import Results, document
from benchmarks.settings import KIB, AppendLoad, PacedLoad
from headrace.client import Headrace

ROUNDS: Final = 3
PLAIN, SECURE = "plain", "secure"
BURSTS: Final = (AppendLoad(100, 1_000_000), AppendLoad(KIB, 256 * KIB), AppendLoad(10 * KIB, 30_000))
CATCH_UP: Final = AppendLoad(KIB, 256 * KIB)
PACED: Final = (PacedLoad(1_000, 5.0), PacedLoad(10_000, 5.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench/tls.json"), help="file for the results")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    with ExitStack() as parts:
        stacks = {PLAIN: {"segment_stores": 1}, SECURE: {"segment_stores": 1, "secure": True}}
        runs = warm_stacks(parts, options.output.parent, stacks)
        for number in range(options.rounds):
            for name, (headrace, stack) in runs.items():
                measure(results, name, headrace, stack, number)
    written = document(
        results, machine=facts, versions=versions(), settings=asdict(SETTINGS) | {"rounds": options.rounds}
    )
    options.output.write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


def measure(results: Results, name: str, headrace: Headrace, stack: Mapping[str, Any], number: int) -> None:
    """One round of one stack."""

    def add(figure: str, value: float, unit: str) -> None:
        results.add(f"{figure}, {name}", value, unit, beside=f"{figure}, {PLAIN}" if name == SECURE else None)

    processes = {"client": os.getpid(), "store": stack["segmentStores"][0]["pid"]}
    for load in BURSTS:
        stream, size = f"burst-{load.event_bytes}-{number}", f"{load.event_bytes} B events"
        workloads.make_stream(headrace, stream, SETTINGS.segments)
        before_s = {part: processor_s(pid) for part, pid in processes.items()}
        add(f"append, {size}", workloads.append_burst(headrace, stream, load, SETTINGS).mb_per_s, "MB/s")
        for part, pid in processes.items():
            used_ms = (processor_s(pid) - before_s[part]) * 1e3
            add(f"append, {size}, processor of the {part}", used_ms * 1e6 / (load.events * load.event_bytes), "ms/MB")
        workloads.await_tier2(headrace, stream, SETTINGS)
    for paced in PACED:
        stream = f"paced-{paced.rate_per_s}-{number}"
        workloads.make_stream(headrace, stream, SETTINGS.segments)
        latencies = workloads.paced_acknowledgements(headrace, stream, paced, SETTINGS)
        for part, value in (("p50", latencies.p50_ms), ("p99", latencies.p99_ms)):
            add(f"acknowledged, {paced.rate_per_s:,}/s of 1 KiB, {part}", value, "ms")
    stream = f"catch-up-{number}"
    workloads.make_stream(headrace, stream, SETTINGS.segments)
    workloads.append_burst(headrace, stream, CATCH_UP, SETTINGS)
    workloads.await_tier2(headrace, stream, SETTINGS)  # what is stored stays in the cache
    add("catch-up from the store's memory", workloads.catch_up_from_store(headrace, stream, CATCH_UP).mb_per_s, "MB/s")


if __name__ == "__main__":
    raise SystemExit(main())

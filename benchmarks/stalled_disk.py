"""`python -m benchmarks.stalled_disk`: what acknowledgements take while the disk of one store stalls.

Two local stacks run at the same time, with one segment store and with three, whose logs have three copies. They take
turns: 1,000 events/s of 1 KiB, first with a disk that does not stall, then with one that stalls for a second every ten.
With three copies two other stores are enough; with one copy every event of that second waits. The stream has so many
segments that the store with the stalling disk owns some of them, and is a member for the others.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import stalling_disk, workloads
from benchmarks.machine import machine_facts, versions
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from benchmarks.settings import PacedLoad, Settings
from headrace.client import Headrace, connect
from headrace.local.running import running_stack

STORES: Final = {"one copy": 1, "three copies": 3}


@dataclass(frozen=True, slots=True)
class StallSettings:
    """One run."""

    rounds: int = 3
    load: PacedLoad = field(default=PacedLoad(1_000, 30.0))
    every_s: float = 10.0
    for_s: float = 1.0
    loads: Settings = field(default=Settings(segments=12))


QUICK: Final = StallSettings(1, PacedLoad(500, 2.0), 1.0, 0.2)
"""Proves that the benchmark runs. Its figures mean nothing, but one copy is slower with stalls."""


def main() -> int:
    name = "python -m benchmarks.stalled_disk"
    parser = argparse.ArgumentParser(prog=name, description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; figures mean nothing")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    settings = QUICK if options.quick else StallSettings()
    facts, results = machine_facts(), Results()
    with ExitStack() as parts:
        scratch = Path(parts.enter_context(tempfile.TemporaryDirectory(dir=options.output))).resolve()
        stalls = scratch / "stalls"
        limits = {
            "HEADRACE_CACHE_BYTES": str(settings.loads.cache_bytes // 4),
            "HEADRACE_FLUSH_AGE_S": str(settings.loads.flush_age_s),
            "HEADRACE_COMPACTION_BYTES_PER_S": "0",
            "AWS_ENDPOINT_URL_S3": parts.enter_context(running_s3_double("free")),
            **stalling_disk.environment(scratch, stalls),
        }
        runs: dict[str, tuple[Headrace, dict[str, Any]]] = {}
        for copies, count in STORES.items():
            (scratch / str(count)).mkdir()
            stack = parts.enter_context(running_stack(scratch / str(count), segment_stores=count, environment=limits))
            headrace = parts.enter_context(connect(stack["endpoints"]["http"]))
            headrace.admin.create_scope(workloads.SCOPE)
            runs[copies] = headrace, stack
        for number in range(settings.rounds):
            for copies, (headrace, stack) in runs.items():
                measure(results, copies, headrace, stack["segmentStores"][0]["id"], stalls, settings, number)
    written = document(results, machine=facts, versions=versions(), settings=asdict(settings))
    (options.output / "stalled-disk.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


def measure(
    results: Results,
    copies: str,
    headrace: Headrace,
    store_id: str,
    stalls: Path,
    settings: StallSettings,
    number: int,
) -> None:
    """One round of one stack: without stalls, then with them."""
    for disk in ("steady", "stalling"):
        stream = f"{disk}-{number}"
        workloads.make_stream(headrace, stream, settings.loads.segments)
        if disk == "stalling":
            stalling_disk.stall(stalls, store_id, settings.every_s, settings.for_s)
        try:
            taken = workloads.paced_acknowledgements(headrace, stream, settings.load, settings.loads)
        finally:
            stalls.unlink(missing_ok=True)
        for part, value in (("p50", taken.p50_ms), ("p99", taken.p99_ms), ("longest", taken.max_ms)):
            steady = f"acknowledged, steady disk, {copies}, {part}"
            beside = steady if disk == "stalling" else None
            results.add(f"acknowledged, {disk} disk, {copies}, {part}", value, "ms", beside=beside)


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m benchmarks.tls`: what TLS and delegation tokens cost, beside a plain stack in the same round.

Two local stacks with one segment store run at the same time, one of them as `headrace up --secure`. They take turns
within each round, so the idle one costs next to nothing. Client and store share the cores of this machine, so each pays
for its own side of the encryption there. Tier 2 is the S3 double of `make bench`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from benchmarks import workloads
from benchmarks.copies import SETTINGS, compare
from benchmarks.processor_time import processor_s
from benchmarks.results import Results
from benchmarks.settings import KIB, AppendLoad, PacedLoad
from headrace.client import Headrace

PLAIN, SECURE = "plain", "secure"
BURSTS: Final = (AppendLoad(100, 1_000_000), AppendLoad(KIB, 256 * KIB), AppendLoad(10 * KIB, 30_000))
CATCH_UP: Final = AppendLoad(KIB, 256 * KIB)
PACED: Final = (PacedLoad(1_000, 5.0), PacedLoad(10_000, 5.0))


def main() -> int:
    stacks = {PLAIN: {"segment_stores": 1}, SECURE: {"segment_stores": 1, "secure": True}}
    return compare("tls", __doc__, stacks, measure)


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

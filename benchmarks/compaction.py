"""Appends while the store merges their small runs in tier 2, against the same appends while it does not.

Two local stacks, which differ in nothing but the budget of the compactor, are asked in turns. Flushes are many and
small, so that there is something to merge all the time.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import workloads
from benchmarks.results import Results
from benchmarks.settings import Settings
from benchmarks.workloads import WrongResultError
from headrace.client import Headrace, connect
from headrace.local.running import running_stack

WITHOUT = "acknowledged, no compaction, p99"
DURING = "acknowledged, during compaction, p99"
COMPACTED = b"event=compacted"


def measure(results: Results, directory: Path, settings: Settings, rounds: int) -> None:
    """Adds both figures. Raises WrongResultError if nothing was merged."""
    budgets = {WITHOUT: 0, DURING: settings.compaction_bytes_per_s}
    with ExitStack() as stacks:
        scratch = {
            name: Path(stacks.enter_context(tempfile.TemporaryDirectory(prefix="stack-", dir=directory)))
            for name in budgets
        }
        clients = {name: _client(stacks, scratch[name], budget, settings) for name, budget in budgets.items()}
        for number in range(rounds):
            for name, headrace in clients.items():
                stream = f"compaction-{number}"
                workloads.make_stream(headrace, stream, settings.segments)
                latencies = workloads.paced_acknowledgements(headrace, stream, settings.compaction, settings)
                results.add(name, latencies.p99_ms, "ms", beside=WITHOUT if name == DURING else None)
                workloads.await_tier2(headrace, stream, settings)
        patience_until_s = time.monotonic() + settings.tier2_patience_s  # on a busy machine the first merge is late
        while not any(COMPACTED in log.read_bytes() for log in scratch[DURING].rglob("*.log")):
            if time.monotonic() > patience_until_s:
                raise WrongResultError("nothing was compacted, so the figure would be that of appends alone")
            time.sleep(0.2)


def _client(stacks: ExitStack, directory: Path, compaction_bytes_per_s: int, settings: Settings) -> Headrace:
    limits = {
        "HEADRACE_CACHE_BYTES": str(settings.cache_bytes),
        "HEADRACE_FLUSH_AGE_S": str(settings.compaction_flush_age_s),
        "HEADRACE_COMPACTION_BYTES_PER_S": str(compaction_bytes_per_s),
    }
    stack = stacks.enter_context(running_stack(directory, segment_stores=1, environment=limits))
    return stacks.enter_context(connect(stack["endpoints"]["http"]))

"""`python -m benchmarks`: measures, prints one table, writes build/bench/results.json.

Every round measures the raw limits, a bare prototype and Headrace right after each other, because a shared machine
changes its mind; the figures are medians over the rounds. Memory is written to once before. Tier 2 is a double that
keeps nothing. Nothing outlives the run but the results and the log of the local stack.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import clients, compaction, instructions, prototype, raw_limits, recovery, workloads
from benchmarks.machine import ProcessorTime, machine_facts, versions
from benchmarks.processor_time import processor_s
from benchmarks.prototype import running_prototype
from benchmarks.raw_s3 import s3_get_mb_per_s
from benchmarks.results import Results, document
from benchmarks.s3_double import PACES, running_s3_double
from benchmarks.settings import KIB, MIB, QUICK, AppendLoad, Settings, store_environment
from benchmarks.store_memory import resident_bytes
from benchmarks.workloads import WrongResultError
from headrace.client import Headrace, HeadraceError, connect
from headrace.local.failures import LocalStackError
from headrace.local.running import running_stack

# A log that recycles its files can do what overwriting does: Headrace is held against that, the better of the two.
RAW_BANDWIDTH = "raw: overwrite + fdatasync, 1 MiB blocks"
RAW_WRITES = "raw: overwrite + fdatasync, 4 KiB blocks"
RAW_LATENCY = f"{RAW_WRITES}, p50"
RAW_LATENCY_P99 = f"{RAW_WRITES}, p99"
RAW_BUSY = f"{RAW_WRITES}, all cores busy"
RAW_LOOPBACK = "raw: loopback TCP"
RAW_PYTHON = "raw: additions of one Python thread"
RAW_STOLEN = "raw: processor time wanted and not given by the host"
RAW_S3 = "raw: ranged GET of 32 MiB from the S3 double"
CACHE = "configured: cache of the store"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; figures mean nothing")
    parser.add_argument("--rounds", type=int, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    parser.add_argument("--raw-only", action="store_true", help="only what the machine gives")
    parser.add_argument("--s3", choices=sorted(PACES), default="free", help="what the S3 double takes for a request")
    options = parser.parse_args()
    settings = QUICK if options.quick else Settings()
    rounds = options.rounds or settings.rounds
    directory: Path = options.output
    directory.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    started_s = time.perf_counter()
    results = Results()
    try:
        if options.raw_only:
            for _ in range(rounds):
                measure_raw(results, directory, settings)
        else:
            measure(results, directory, settings, rounds, options.s3)
    except (LocalStackError, WrongResultError, HeadraceError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    facts["seconds"] = round(time.perf_counter() - started_s, 1)
    written = document(
        results, machine=facts, versions=versions(), settings=asdict(settings) | {"rounds": rounds, "s3": options.s3}
    )
    (directory / "results.json").write_text(json.dumps(written, indent=2) + "\n")
    print(f"\n{results.table()}\n\n{facts['cores']} cores, kernel {facts['kernel']}, Python {facts['python']}, "
          f"{rounds} rounds, {facts['seconds']} s")  # fmt: skip
    return 0


def measure(results: Results, directory: Path, settings: Settings, rounds: int, s3: str) -> None:
    """All rounds on one local stack, whose data is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="stack-", dir=directory) as scratch,
        running_s3_double(s3) as s3_url,
        running_prototype(directory, settings.cache_bytes) as prototype_port,
    ):
        stack_directory = Path(scratch)
        limits = store_environment(settings.cache_bytes, settings.flush_age_s, s3_url)
        try:
            with running_stack(stack_directory, segment_stores=1, environment=limits) as stack:
                with connect(stack["endpoints"]["http"]) as headrace:
                    run = Run(results, headrace, stack, prototype_port, settings)
                    workloads.warm_up(headrace, settings)
                    prototype.append_burst(prototype_port, settings.warm_up, settings)
                    for number in range(rounds):
                        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
                        _measure_round(run, directory, number, stack["environment"] | limits)
                resident = resident_bytes(stack_directory / "data")
                if resident:
                    results.add("resident memory of the store, cache included", resident / MIB, "MiB", beside=CACHE)
            compaction.measure(results, directory, settings, rounds)
            measure_recovery(results, directory, settings, rounds)
            instructions.measure(results, settings.counted_events)
            clients.measure_once(results, directory, settings.clients)
        finally:
            log = stack_directory / "local-stack.log"
            if log.exists():
                shutil.copy(log, directory / "local-stack.log")


@dataclass(frozen=True, slots=True)
class Run:
    """What a round needs: the client, the state file of the stack, and the port of the prototype."""

    results: Results
    headrace: Headrace
    stack: Mapping[str, Any]
    prototype_port: int
    settings: Settings

    @property
    def url(self) -> str:
        url: str = self.stack["endpoints"]["http"]
        return url

    @property
    def store_pid(self) -> int:
        pid: int = self.stack["segmentStores"][0]["pid"]
        return pid


def _measure_round(run: Run, directory: Path, number: int, aws: Mapping[str, str]) -> None:
    results, settings = run.results, run.settings
    time_before = ProcessorTime.now()
    measure_raw(results, directory, settings)
    s3 = s3_get_mb_per_s(aws, settings.raw_seconds, settings.history_threads)
    results.add(RAW_S3, s3, "MB/s")
    results.add(CACHE, settings.cache_bytes / MIB, "MiB")
    measure_round(run, number)
    time_after = ProcessorTime.now()
    if time_before and time_after:
        results.add(RAW_STOLEN, time_after.stolen_percent_since(time_before), "%")


def measure_raw(results: Results, directory: Path, settings: Settings) -> None:
    """What the disk below `directory`, a core and loopback give."""
    for kind, recycled_bytes in (("append", None), ("overwrite", settings.raw_recycled_bytes)):
        for block_bytes in settings.raw_block_bytes:
            found = raw_limits.synced_writes(
                directory, block_bytes, settings.raw_seconds, recycled_bytes=recycled_bytes
            )
            name = f"raw: {kind} + fdatasync, {_size(block_bytes)} blocks"
            if block_bytes == MIB:
                results.add(name, found.mb_per_s, "MB/s")
            else:
                results.add(f"{name}, rate", found.per_second, "/s")
                results.add(f"{name}, p50", found.latencies.p50_ms, "ms")
                results.add(f"{name}, p99", found.latencies.p99_ms, "ms")
    pace = settings.paced[0].rate_per_s
    paced = raw_limits.paced_synced_writes(directory, 4 * KIB, pace, settings.raw_seconds, settings.raw_recycled_bytes)
    results.add(f"{RAW_WRITES}, {pace:,} a second, p50", paced.p50_ms, "ms")
    results.add(f"{RAW_WRITES}, {pace:,} a second, p99", paced.p99_ms, "ms")
    with raw_limits.busy_cores():
        busy = raw_limits.synced_writes(
            directory, 4 * KIB, settings.raw_seconds, recycled_bytes=settings.raw_recycled_bytes
        )
    results.add(f"{RAW_BUSY}, p50", busy.latencies.p50_ms, "ms")
    results.add(f"{RAW_BUSY}, p99", busy.latencies.p99_ms, "ms")
    results.add(RAW_PYTHON, raw_limits.python_additions_per_s(settings.raw_seconds) / 1e6, "M/s")
    results.add(RAW_LOOPBACK, raw_limits.loopback_copy_mb_per_s(settings.raw_seconds), "MB/s")


def measure_round(run: Run, number: int) -> None:
    """One round of every workload, each on a stream of its own and with tier 2 at rest."""
    results, headrace, settings = run.results, run.headrace, run.settings
    for append in settings.appends:
        _measure_append(run, append, f"append-{append.event_bytes}-{number}")
    _measure_one_by_one(run, f"one-by-one-{number}")
    _measure_paced(run, number)
    _measure_crowd(results, headrace, number, settings)
    stream = f"catch-up-{number}"
    workloads.make_stream(headrace, stream, settings.segments)
    workloads.append_burst(headrace, stream, settings.catch_up, settings)
    workloads.await_tier2(headrace, stream, settings)  # what is stored stays in the cache
    memory = workloads.catch_up_from_store(headrace, stream, settings.catch_up)
    results.add("catch-up from the store's memory", memory.mb_per_s, "MB/s", beside=RAW_LOOPBACK)
    history = workloads.catch_up_from_s3(headrace, stream, settings.catch_up, settings)
    results.add("catch-up straight from the S3 double", history.mb_per_s, "MB/s", beside=RAW_S3)
    _measure_company(results, headrace, run.url, stream, number, settings)


def _measure_append(run: Run, append: AppendLoad, stream: str) -> None:
    results, settings = run.results, run.settings
    bare = prototype.append_burst(run.prototype_port, append, settings)
    workloads.make_stream(run.headrace, stream, settings.segments)
    before_s = processor_s(os.getpid()), processor_s(run.store_pid)
    burst = workloads.append_burst(run.headrace, stream, append, settings)
    after_s = processor_s(os.getpid()), processor_s(run.store_pid)
    name = f"append, {_size(append.event_bytes)} events"
    results.add(f"prototype: {name}", bare.mb_per_s, "MB/s", beside=RAW_BANDWIDTH)
    results.add(name, burst.mb_per_s, "MB/s", beside=f"prototype: {name}")
    results.add(f"prototype: {name}, rate", bare.events_per_s, "/s")
    results.add(f"{name}, rate", burst.events_per_s, "/s", beside=f"prototype: {name}, rate")
    for part, before, after in zip(("client", "store"), before_s, after_s, strict=True):
        results.add(f"{name}, processor of the {part}", (after - before) / append.events * 1e6, "us an event")
    workloads.await_tier2(run.headrace, stream, settings)


def _measure_one_by_one(run: Run, stream: str) -> None:
    """Held against the batches of the prototype, which has no call for each event."""
    load, settings = run.settings.one_by_one, run.settings
    workloads.make_stream(run.headrace, stream, settings.segments)
    single = workloads.append_one_by_one(run.headrace, stream, load, settings)
    name, beside = f"append, {_size(load.event_bytes)} events", f"prototype: append, {_size(load.event_bytes)} events"
    run.results.add(f"{name} one by one, rate", single.events_per_s, "/s", beside=f"{beside}, rate")
    workloads.await_tier2(run.headrace, stream, settings)


def _measure_paced(run: Run, number: int) -> None:
    results, settings = run.results, run.settings
    for paced in settings.paced:
        stream = f"paced-{paced.rate_per_s}-{number}"
        workloads.make_stream(run.headrace, stream, settings.segments)
        late = raw_limits.late_wakes(paced.rate_per_s, settings.raw_seconds)
        raw = f"raw: waking {paced.rate_per_s:,} times a second, lateness"
        results.add(f"{raw} p50", late.p50_ms, "ms")
        results.add(f"{raw} p99", late.p99_ms, "ms")
        bare = prototype.paced_acknowledgements(run.prototype_port, paced, settings)
        alone = workloads.paced_acknowledgements(run.headrace, stream, paced, settings)
        latencies = workloads.paced_writes(run.headrace, run.url, stream, paced, settings)
        name = f"at {paced.rate_per_s:,}/s of {_size(paced.event_bytes)}"
        beside = f"prototype: acknowledged, {name}"
        results.add(f"{beside}, p50", bare.p50_ms, "ms", beside=RAW_LATENCY)
        results.add(f"{beside}, p99", bare.p99_ms, "ms", beside=RAW_LATENCY_P99)
        results.add(f"acknowledged without a reader, {name}, p50", alone.p50_ms, "ms", beside=f"{beside}, p50")
        results.add(f"acknowledged without a reader, {name}, p99", alone.p99_ms, "ms", beside=f"{beside}, p99")
        results.add(f"acknowledged, {name}, p50", latencies.acknowledged.p50_ms, "ms", beside=f"{beside}, p50")
        results.add(f"acknowledged, {name}, p99", latencies.acknowledged.p99_ms, "ms", beside=f"{beside}, p99")
        results.add(f"end to end, {name}, p50", latencies.delivered.p50_ms, "ms", beside=RAW_LATENCY)
        results.add(f"end to end, {name}, p99", latencies.delivered.p99_ms, "ms", beside=RAW_LATENCY_P99)
        workloads.await_tier2(run.headrace, stream, settings)


def _measure_crowd(results: Results, headrace: Headrace, number: int, settings: Settings) -> None:
    """The same rate spread over few and over many segments."""
    few, _ = settings.crowd_segments
    beside = f"acknowledged, {few} active segments, p95"
    for segments in settings.crowd_segments:
        stream = f"crowd-{segments}-{number}"
        workloads.make_stream(headrace, stream, segments)
        latencies = workloads.paced_acknowledgements(headrace, stream, settings.crowd, settings)
        name = f"acknowledged, {segments} active segments, p95"
        results.add(name, latencies.p95_ms, "ms", beside=None if name == beside else beside)
        workloads.await_tier2(headrace, stream, settings)


def _measure_company(
    results: Results, headrace: Headrace, url: str, busy_stream: str, number: int, settings: Settings
) -> None:
    """Appends alone, and while somebody reads another stream from head to tail as fast as it goes."""
    alone, accompanied = "acknowledged, no catch-up reader, p99", "acknowledged, beside a catch-up reader, p99"
    stream = f"company-{number}"
    workloads.make_stream(headrace, stream, settings.segments)
    latencies = workloads.paced_acknowledgements(headrace, stream, settings.company, settings)
    results.add(alone, latencies.p99_ms, "ms")
    with workloads.catch_up_reader(url, busy_stream):
        latencies = workloads.paced_acknowledgements(headrace, stream, settings.company, settings)
    results.add(accompanied, latencies.p99_ms, "ms", beside=alone)
    workloads.await_tier2(headrace, stream, settings)


def measure_recovery(results: Results, directory: Path, settings: Settings, rounds: int) -> None:
    """A container whose whole log must come back into memory: the worst case for its size."""
    for _ in range(rounds):
        for append_bytes in settings.recovered_append_bytes:
            with tempfile.TemporaryDirectory(prefix="log-", dir=directory) as log:
                recovered = recovery.recover(Path(log), settings.recovered_bytes, append_bytes, stored_share=0.0)
            name = f"recovery of {_size(settings.recovered_bytes)} of log, appends of {_size(append_bytes)}"
            results.add(name, recovered.seconds, "s")
            results.add(f"{name}, until appends are taken", recovered.until_appends_s, "s")


def _size(size_bytes: int) -> str:
    for unit, factor in (("MiB", MIB), ("KiB", 1024)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


if __name__ == "__main__":
    sys.exit(main())

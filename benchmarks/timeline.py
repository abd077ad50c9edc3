"""`python -m benchmarks.timeline`: where a block is on its way from the client to the disk and back, at saturation.

A client and a store, each in a process of its own, note when each block passes each station (`time_recorders`). The
disk is real; metadata and tier 2 cost nothing. A round writes events of one size as fast as they are taken, after as
many to warm up. The result is a table of the stages, and a picture of consecutive blocks from the middle of the run.
The store runs interpreted, because compiled functions cannot be wrapped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.block_times import BlockTimes, blocks_in_flight, document, joined, mb_per_s, steady, table
from benchmarks.machine import machine_facts, versions
from benchmarks.settings import KIB, MIB, AppendLoad
from benchmarks.timeline_picture import chosen_blocks, draw

LOADS: Final = (AppendLoad(KIB, 256 * KIB), AppendLoad(10 * KIB, 25 * KIB))
WARM_UP_BYTES: Final = 512 * MIB
"""Twice the cache of the store, so that all its memory and the files of the log were written to before."""

QUICK_LOADS: Final = (AppendLoad(KIB, 16 * KIB), AppendLoad(10 * KIB, 1_600))
QUICK_WARM_UP_BYTES: Final = 4 * MIB
STOP_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """The blocks of one load without those at both ends."""

    load: AppendLoad
    blocks: Sequence[BlockTimes]

    @property
    def name(self) -> str:
        return f"{self.load.event_bytes // KIB}-kib"

    @property
    def title(self) -> str:
        return (
            f"Events of {self.load.event_bytes // KIB} KiB: {mb_per_s(self.blocks):,.0f} MB/s, "
            f"{blocks_in_flight(self.blocks):.1f} blocks in flight"
        )


def measure(load: AppendLoad, warm_up_events: int, directory: Path) -> Run:
    """Write the load to a store whose log is in `directory`.

    Raises:
        subprocess.CalledProcessError: a process failed.
        subprocess.TimeoutExpired: the store did not end with its input, and was killed.
        ValueError: no block passed all stations, or not in order.
    """
    store_command = [sys.executable, "-m", "benchmarks.timed_store", str(directory)]
    with subprocess.Popen(store_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        port = store.stdout.readline().removeprefix("ready ").strip()
        client = [sys.executable, "-m", "benchmarks.timed_client", port]
        counts = [str(load.event_bytes), str(load.events), str(warm_up_events)]
        try:
            of_client = subprocess.run([*client, *counts], stdout=subprocess.PIPE, text=True, check=True).stdout
        finally:
            said = _stopped(store)
    if store.returncode:
        raise subprocess.CalledProcessError(store.returncode, store_command)
    blocks = joined(json.loads(of_client), json.loads(said.splitlines()[-1]))
    if not blocks:
        raise ValueError("no block passed all stations")
    return Run(load, steady(blocks))


def _stopped(store: subprocess.Popen[str]) -> str:
    """End the store's input, and return what it says until its end."""
    try:
        return store.communicate("", STOP_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        store.kill()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="prove only that it runs")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"machine": machine_facts(), "versions": versions(), "is_quick": options.quick}
    warm_up_bytes = QUICK_WARM_UP_BYTES if options.quick else WARM_UP_BYTES
    for load in QUICK_LOADS if options.quick else LOADS:
        with tempfile.TemporaryDirectory(dir=options.output) as directory:
            run = measure(load, warm_up_bytes // load.event_bytes, Path(directory))
        print(f"{run.title}\n{table(run.blocks)}\n", flush=True)
        facts[run.name] = {"event_bytes": load.event_bytes, "events": load.events, **document(run.blocks)}
        picture = draw(run.title, chosen_blocks(run.blocks))
        (options.output / f"timeline-{run.name}.svg").write_text(picture + "\n")
    (options.output / "timeline.json").write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

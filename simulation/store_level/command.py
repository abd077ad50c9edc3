"""`python -m simulation stores`: runs of whole stores."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from fuzz.randomness import seed_range
from simulation.store_level.mutations import MUTATIONS, SEEDS_MAX, seeds_until_caught
from simulation.store_level.runs import StoreRun, run_store_seed

_SEEDS_PER_PROCESS = 50
"""A process is then replaced, so that what killed stores leave behind does not add up."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--seed", type=int, dest="store_seed", help="replay this seed")
    commands = parser.add_subparsers(dest="stores_what", metavar="WHAT")
    run = commands.add_parser("run", help="run many seeds and report")
    run.add_argument("--seeds", type=seed_range, default=range(20), metavar="A-B", help="from A up to and with B")
    run.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    mutations = commands.add_parser("mutations", help="run each deliberate bug until it is caught")
    mutations.add_argument("names", nargs="*", help="only these")


def execute(options: argparse.Namespace) -> int:
    """Execute the command; return the exit code."""
    if options.stores_what == "mutations":
        return _mutations(options.names)
    if options.stores_what == "run":
        return _run(options.seeds, options.processes)
    if options.store_seed is None:
        raise SystemExit("give --seed, or one of run, mutations")
    run = run_store_seed(options.store_seed)
    print(report([run]))
    print(f"digest {run.digest:08x}")
    return 1 if run.violations else 0


def report(runs: list[StoreRun]) -> str:
    """What the runs have reached, and what they violated."""
    faults: Counter[str] = Counter()
    for run in runs:
        faults += run.faults
    lines = [
        f"{len(runs)} seeds, {sum(run.events for run in runs)} events, {sum(run.answers for run in runs)} answers, "
        f"{sum(run.checks for run in runs)} checks, {sum(run.restarts for run in runs)} restarts"
    ]
    lines += [f"  {count:8}  {kind}" for kind, count in sorted(faults.items())]
    lines += [f"seed {run.seed}: {violation}" for run in runs for violation in run.violations]
    return "\n".join(lines)


def _run(seeds: range, processes: int) -> int:
    runs: list[StoreRun] = []
    for first in range(seeds.start, seeds.stop, processes * _SEEDS_PER_PROCESS):
        batch = range(first, min(first + processes * _SEEDS_PER_PROCESS, seeds.stop))
        with ProcessPoolExecutor(processes) as pool:
            for run in pool.map(run_store_seed, batch):
                runs.append(run)
                for violation in run.violations:
                    print(f"seed {run.seed}: {violation}", flush=True)
    print(report(runs))
    return 1 if any(run.violations for run in runs) else 0


def _mutations(names: list[str]) -> int:
    missed = 0
    for mutation in MUTATIONS:
        if not names or mutation.name in names:
            found = seeds_until_caught(mutation, SEEDS_MAX)
            missed += found is None
            outcome = "NOT CAUGHT" if found is None else f"caught after {found[0]} seeds: {found[1]}"
            print(f"{mutation.name:>3}  {mutation.bug}: {outcome}", flush=True)
    return 1 if missed else 0

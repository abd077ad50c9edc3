"""`python -m simulation`: run seeds, replay one, shrink a failing one, or prove that deliberate bugs are found."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from string import ascii_lowercase
from typing import Final

from simulation.mutations import MUTATIONS, SEEDS_MAX, Mutation, seeds_until_caught
from simulation.reporting import Report
from simulation.runs import Run, run_seed
from simulation.shrinking import as_test, shrink
from simulation.store_level import command
from simulation.store_level import mutations as store_mutations

_CHUNK: Final = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed")
    commands = parser.add_subparsers(dest="what", metavar="WHAT")
    run = commands.add_parser("run", help="run many seeds and report")
    run.add_argument("--first", type=int, default=0)
    run.add_argument("--seeds", type=int, default=1_500)
    run.add_argument("--faults", type=int, default=0, help="continue until so many faults were injected")
    run.add_argument("--each", type=int, default=0, help="fail if a fault or state was reached less often")
    run.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    shrinking = commands.add_parser("shrink", help="reduce a failing seed and print it as a test")
    shrinking.add_argument("--seed", type=int, required=True, dest="failing")
    mutations = commands.add_parser("mutations", help="run each deliberate bug until it is caught")
    mutations.add_argument("names", nargs="*", help="only these")
    mutations.add_argument("--seeds", type=int, default=SEEDS_MAX)
    command.add_arguments(commands.add_parser("stores", help="whole segment stores on a simulated event loop"))
    options = parser.parse_args()
    match options.what:
        case "run":
            return _run(options)
        case "shrink":
            return _shrink(options.failing)
        case "mutations":
            return _mutations(options.names, options.seeds)
        case "stores":
            return command.execute(options)
        case _ if options.seed is None:
            parser.error("give --seed, or one of run, shrink, mutations, stores")
    return _replay(options.seed)


def _replay(seed: int) -> int:
    run = run_seed(seed)
    report = Report()
    report.add(run)
    print(report.text())
    print(f"\ndigest {run.digest:08x}")
    for violation in run.violations:
        print(f"{violation.checker} at {violation.time / 1e6:.3f} s: {violation.what}")
    return 1 if run.violations else 0


def _run(options: argparse.Namespace) -> int:
    report = Report()
    is_complete = False
    try:
        for run in _runs(options.first, options.processes):
            report.add(run)
            for violation in run.violations[:1]:
                print(f"seed {run.seed}: {violation.checker}: {violation.what}", flush=True)
            is_complete = report.seeds >= options.seeds and sum(report.faults.values()) >= options.faults
            if is_complete:
                break
    except KeyboardInterrupt:
        print("interrupted: this is the report of the seeds until then")
    print(report.text())
    rare = report.too_rare(options.each)
    for each in rare:
        print(f"reached too rarely: {each}")
    return 0 if is_complete and not report.failures and not rare else 1


def _runs(first: int, processes: int) -> Iterator[Run]:
    """Runs in order of their seeds, without end."""
    seeds = iter(range(first, sys.maxsize))
    if processes == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        while True:
            batch: Iterable[int] = [next(seeds) for _ in range(_CHUNK * processes * 2)]
            yield from pool.map(run_seed, batch, chunksize=_CHUNK)


def _shrink(seed: int) -> int:
    violations = run_seed(seed).violations
    if not violations:
        print(f"seed {seed} violates nothing")
        return 1
    checker = violations[0].checker
    tape = shrink(seed, checker, lambda steps: print(f"# {steps} steps", file=sys.stderr))
    print(as_test(seed, checker, tape))
    return 0


def _mutations(names: list[str], seeds: int) -> int:
    """Run the bugs of the protocol, and those of whole stores that have a number. A number counts with all its bugs."""
    numbered = [mutation for mutation in store_mutations.MUTATIONS if mutation.name[0].isdigit()]
    caught: dict[str, bool] = {}
    for mutation in sorted([*MUTATIONS, *numbered], key=_order):
        if names and mutation.name not in names:
            continue
        if mutation in numbered:
            found = store_mutations.seeds_until_caught(mutation, store_mutations.SEEDS_MAX)
        else:
            found = seeds_until_caught(mutation, seeds)
        number = _number(mutation)
        caught[number] = caught.get(number, True) and found is not None
        outcome = "NOT CAUGHT" if found is None else f"caught by {found[1]} after {found[0]} seeds"
        print(f"{mutation.name:>3}  {mutation.bug}: {outcome}", flush=True)
    print(f"{sum(caught.values())} of {len(caught)} caught")
    return 0 if all(caught.values()) else 1


def _number(mutation: Mutation) -> str:
    return mutation.name.rstrip(ascii_lowercase)


def _order(mutation: Mutation) -> tuple[int, str]:
    return int(_number(mutation)), mutation.name


if __name__ == "__main__":
    sys.exit(main())

"""`python -m fuzz segments` and the other random programs (`PROGRAMS`): their seeds, one after the other."""

from __future__ import annotations

import logging
import traceback
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fuzz.program_trace import Trace
from fuzz.randomness import Random, seed_range

PROGRAMS: Final = {
    "segments": "the segments of a store in memory",
    "lost-volumes": "the same segments, restored from tier 2 again and again",
    "reads": "the same segments, read over sessions with a small cache",
    "tables": "the tables of a store in memory",
    "clients": "writers and readers of the client",
    "controller": "clients, processors and ticks of a controller in memory",
}
"""What the random programs run on, by their names on the command line."""

_TRACEBACK_LINES: Final = -6

Program = Callable[[int, Trace], Coroutine[Any, Any, Counter[str]]]


def add_program_arguments(parser: ArgumentParser) -> None:
    """The options of all programs."""
    parser.add_argument("--seeds", type=seed_range, default=range(1, 101), metavar="A-B", help="by default 1-100")


def run_programs(options: Namespace) -> int:
    """Runs the seeds, and prints what happened. Returns 1 if one of them has failed."""
    logging.disable(logging.CRITICAL)  # stores, clients and the controller complain about the faults
    failed: list[int] = []
    happened: Counter[str] = Counter()
    for seed in options.seeds:
        trace = Trace()
        try:
            happened += run_seed(options.what, seed, trace)
        except Exception as error:  # noqa: BLE001 - the next seed may find something else
            failed.append(seed)
            print(f"{options.what} seed {seed} failed: {error!r}", flush=True)
            traceback.print_exception(error, limit=_TRACEBACK_LINES)
            print(f"the last of {trace.count} steps:\n{trace.text()}", flush=True)
    for what, count in sorted(happened.items()):
        print(f"{count:>8}  {what}")
    names = f": {', '.join(map(str, failed))}" if failed else ""
    print(f"{options.what}: {len(options.seeds)} seeds, {len(failed)} failed{names}")
    return 1 if failed else 0


def run_seed(what: str, seed: int, trace: Trace) -> Counter[str]:
    """Run the program of one seed, all but that of the controller in virtual time.

    Raises as the program, or StuckError.
    """
    if what == "controller":
        from fuzz.controller_programs import run_controller_program

        return run_controller_program(seed, trace)
    from fuzz.virtual_time import run_in_virtual_time

    return run_in_virtual_time(_program(what)(seed, trace), Random(seed))


def _program(what: str) -> Program:
    if what == "segments":
        from fuzz.segment_programs import run_segment_program

        return run_segment_program
    if what == "lost-volumes":
        from fuzz.lost_volume_programs import run_lost_volume_program

        return run_lost_volume_program
    if what == "reads":
        from fuzz.read_programs import run_read_program

        return run_read_program
    if what == "clients":
        from fuzz.client_programs import run_client_program

        return run_client_program
    from fuzz.table_programs import run_table_program

    return run_table_program

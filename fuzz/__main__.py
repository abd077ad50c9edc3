"""`python -m fuzz WHAT`: a decoder to give any bytes to, or `kill-nine`, `power-cuts`, `soak`, `segments`,
`lost-volumes`, `reads`, `tables`, `clients`, `controller`, `lost-stores`, `hostile-clients`, `spark-sink`.

Ends with exit code 0 if nothing was found. What breaks a decoder is left in build/fuzz; a torture prints the seed with
which it can be repeated.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from fuzz.program_command import PROGRAMS, add_program_arguments, run_programs
from fuzz.sink_command import add_sink_arguments, copy_streams

CORPUS: Final = Path(__file__).parent / "corpus"
DECODERS: Final = sorted(path.name for path in CORPUS.iterdir())
_INPUT_BYTES_MAX: Final = 4096
_MEMORY_MB_MAX: Final = 1024
_MINUTE_S: Final = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name in DECODERS:
        decoder = commands.add_parser(name, help="any bytes, with atheris")
        decoder.add_argument("--seconds", type=int, default=60)
        decoder.add_argument("--runs", type=int, default=-1, help="at most so many inputs")
        decoder.add_argument("--output", type=Path, default=Path("build/fuzz"), help="for new inputs and findings")
    for name in ("kill-nine", "power-cuts"):
        torture = commands.add_parser(name, help="one seed after the other")
        torture.add_argument("--seed", type=int, default=1, help="the first one")
        torture.add_argument("--rounds", type=int, default=1, help="at least so many seeds")
        torture.add_argument("--minutes", type=float, default=0, help="at least so long")
        torture.add_argument("--crashes", type=int, default=5, help="kills, or power cuts in each of three loads")
    soak = commands.add_parser("soak", help="saturated load; memory, log and unstored bytes stay bounded")
    soak.add_argument("--minutes", type=float, default=1)
    soak.add_argument("--seed", type=int, default=1)
    for name, subject in PROGRAMS.items():
        add_program_arguments(commands.add_parser(name, help=f"random programs on {subject}, one seed after the other"))
    stores = commands.add_parser("lost-stores", help="three stores with three copies, one seed after the other")
    stores.add_argument("--seed", type=int, default=1, help="the first one")
    stores.add_argument("--rounds", type=int, default=1, help="at least so many seeds")
    stores.add_argument("--minutes", type=float, default=0, help="at least so long")
    stores.add_argument("--count", type=int, default=6, help="faults of a seed")
    stores.add_argument("--faults", nargs="*", default=(), help="these instead of random ones")
    stores.add_argument("--mixed-with", default="", metavar="REVISION", help="every second store runs this release")
    hostile = commands.add_parser("hostile-clients", help="all attacks at once on a store, next to a good writer")
    hostile.add_argument("--seed", type=int, default=1)
    hostile.add_argument("--seconds", type=float, default=30, help="of each kind of tokens")
    hostile.add_argument("--attacks", nargs="*", default=(), help="these instead of all")
    sink = commands.add_parser("spark-sink", help="a Spark query that copies a stream, with everything killed under it")
    add_sink_arguments(sink)
    options = parser.parse_args()
    if options.what in DECODERS:
        return _fuzz(options.what, options.seconds, options.runs, options.output)
    if options.what == "soak":
        from fuzz.soak import soak as run_soak

        print(run_soak(options.seed, seconds=options.minutes * _MINUTE_S))
        return 0
    if options.what in PROGRAMS:
        return run_programs(options)
    if options.what == "lost-stores":
        return _lose_stores(options)
    if options.what == "hostile-clients":
        from fuzz.hostile_clients import run

        for tokens in ("off", "none", "valid"):
            print(run(options.seed, seconds=options.seconds, tokens=tokens, attacks=options.attacks), flush=True)
        return 0
    if options.what == "spark-sink":
        return copy_streams(options)
    return _torture(_torturer(options.what, options.crashes), options.seed, options.rounds, options.minutes * _MINUTE_S)


def _fuzz(target: str, seconds: int, runs: int, output: Path) -> int:
    """Does not return: the fuzzer ends the process, with an exit code that is not 0 if it found something."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["headrace"]):
        targets = importlib.import_module("fuzz.decoders").TARGETS
    inputs = output / target
    inputs.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-runs={runs}", f"-max_len={_INPUT_BYTES_MAX}"]
    limits += [f"-rss_limit_mb={_MEMORY_MB_MAX}", "-timeout=10", f"-artifact_prefix={output}/{target}-"]
    atheris.Setup([sys.argv[0], *limits, str(inputs), str(CORPUS / target)], targets[target])
    atheris.Fuzz()
    return 0


def _torturer(what: str, crashes: int) -> Callable[[int], int]:
    logging.disable(logging.CRITICAL)  # a store that is killed complains
    if what == "kill-nine":
        from fuzz.kill_nine import torture

        return lambda seed: torture(seed, kills=crashes)
    import asyncio

    from fuzz.power_cuts import torture as cut

    return lambda seed: asyncio.run(cut(seed, generations=3, cuts=crashes))


def _lose_stores(options: argparse.Namespace) -> int:
    from fuzz.lost_stores import torture
    from fuzz.other_code import other_code

    logging.disable(logging.CRITICAL)
    with other_code(options.mixed_with) if options.mixed_with else nullcontext() as other:
        search = partial(torture, faults=options.faults, count=options.count, other=other)
        return _torture(search, options.seed, options.rounds, options.minutes * _MINUTE_S)


def _torture(torture: Callable[[int], object], seed: int, rounds: int, seconds: float) -> int:
    from headrace.adapters.system_clock import SystemClock

    clock = SystemClock()
    started_s, last = clock.monotonic_s(), seed + rounds
    while seed < last or clock.monotonic_s() - started_s < seconds:
        print(f"seed {seed}", end=" ", flush=True)
        print(torture(seed), flush=True)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m fuzz spark-sink`: seeds on each Spark, all on one stack, and a summary by kind of fault."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fuzz.randomness import seed_range
from fuzz.sink_faults import ALL
from fuzz.spark_engines import VERSIONS, Engine, NoEngineError, find_engine

if TYPE_CHECKING:
    from fuzz.sink_stack import SinkStack

KILLS_DEFAULT: Final = 2
EVIDENCE: Final = Path("build/fuzz")
_MINUTE_S: Final = 60.0
_NOT_EVIDENCE: Final = ("local-", "work-", "spark-")


def add_sink_arguments(parser: ArgumentParser) -> None:
    """The options of the search."""
    parser.add_argument("--spark", nargs="+", choices=VERSIONS, default=["4.1"], help="on these, one after the other")
    parser.add_argument("--seeds", type=seed_range, metavar="A-B", help="on each Spark")
    parser.add_argument("--minutes", type=float, default=0, help="without --seeds: from seed 1, each Spark so long")
    parser.add_argument("--kills", type=int, default=KILLS_DEFAULT, help="ends of the driver of a seed")
    parser.add_argument("--faults", nargs="+", choices=ALL, default=(), metavar="KIND", help="only these")


def copy_streams(options: Namespace) -> int:
    """Copies, and prints what happened. Returns 1 if a copy is wrong, 2 if a Spark is not installed."""
    try:
        engines = [find_engine(version) for version in options.spark]
    except NoEngineError as error:
        print(error, file=sys.stderr)
        return 2
    from fuzz.sink_stack import sink_stack

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process of Spark is left
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="headrace-spark-sink-", ignore_cleanup_errors=True) as name:
        with sink_stack(Path(name)) as stack:
            wrong = [
                each for engine in engines for each in _copy_on(engine, stack, Path(name) / engine.version, options)
            ]
        if wrong:
            print(f"wrong: {', '.join(wrong)}")
    return 1 if wrong else 0


def _copy_on(engine: Engine, stack: SinkStack, directory: Path, options: Namespace) -> list[str]:
    """The seeds on one Spark; the names of those whose copy is wrong."""
    from fuzz.spark_engines import spark_cluster
    from fuzz.spark_sink import copy_under_faults, make_plan
    from headrace.adapters.system_clock import SystemClock

    directory.mkdir()
    happened: Counter[str] = Counter()
    wrong: list[str] = []
    clock, done = SystemClock(), 0
    until_s = clock.monotonic_s() + options.minutes * _MINUTE_S
    with ExitStack() as parts:
        cluster = parts.enter_context(spark_cluster(engine, directory)) if engine.has_spark else None
        for seed in options.seeds or count(1):
            if options.seeds is None and done and clock.monotonic_s() >= until_s:
                break
            name, own = f"spark-sink-{engine.version}-seed-{seed}", directory / str(seed)
            own.mkdir()
            plan = make_plan(engine, seed, options.kills, options.faults)
            print(f"Spark {engine.version} seed {seed}", end=" ", flush=True)
            try:
                outcome = copy_under_faults(stack, engine, name, own, plan, cluster)
            except Exception as problem:  # noqa: BLE001 - the next seed may find something else
                wrong.append(name)
                shutil.copytree(directory.parent, EVIDENCE / name, dirs_exist_ok=True, ignore=_not_evidence)
                print(f"{plan}: {problem!r}; see {EVIDENCE / name}", flush=True)
            else:
                happened += outcome.happened
                print(outcome, flush=True)
            done += 1
    print(f"Spark {engine.version}: {done} seeds, {len(wrong)} wrong")
    for fault in ALL:
        print(f"{happened[fault] or 'never':>8}  {fault}", flush=True)
    return wrong


def _not_evidence(directory: str, names: list[str]) -> list[str]:
    """Everything but logs and checkpoints."""
    return [name for name in names if name in ("data", "spark", "warehouse") or name.startswith(_NOT_EVIDENCE)]

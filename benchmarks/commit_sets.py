"""`python -m benchmarks.commit_sets`: what it takes to commit the transactions of a micro-batch, all or none.

Each transaction has written events to every segment of its stream, as a task of Spark does. A set of them is committed
with one call on a local stack. Measured are the time until the call is answered and the time until the last
transaction is visible, and for both together the processor time of the controller, of the AWS emulator and of the
segment store, and of this process. The emulator is Python: on AWS its share is another, so the requests are counted
by a test (`tests/controller/services/test_commit_set_requests.py`), which also tells how many follow each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import machine_facts, versions
from benchmarks.processor_time import processor_s
from benchmarks.results import Results, document
from benchmarks.workloads import SCOPE, WrongResultError
from headrace.client import Headrace, ScalingPolicy, connect
from headrace.local.running import running_stack
from headrace.model.transactions import TransactionState

SEGMENTS: Final = 4
EVENTS: Final = 16
"""Of a transaction, with so many routing keys that each segment gets some."""

LEASE_MS: Final = 24 * 3600 * 1000
WRITERS: Final = 8
POLL_S: Final = 0.01
VISIBLE_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Batch:
    """So many transactions, spread evenly over so many streams."""

    transactions: int
    streams: int = 1

    @property
    def name(self) -> str:
        return f"{self.transactions:,} transactions of {self.streams} stream{'s' if self.streams > 1 else ''}"


BATCHES: Final = (Batch(1), Batch(20), Batch(200), Batch(200, 4), Batch(2_000))
QUICK: Final = (Batch(1), Batch(8, 4))
"""Proves that the benchmark runs. Its figures mean nothing."""


def begin(headrace: Headrace, batch: Batch) -> dict[str, list[str]]:
    """The transactions of a batch by stream, with their events durable."""
    streams = [f"set-{number}" for number in range(batch.streams)]
    for stream in streams:
        headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(SEGMENTS), exist_ok=True)
    keys = [f"key {number}" for number in range(EVENTS)]

    def write(number: int) -> tuple[str, str]:
        stream = streams[number % batch.streams]
        with headrace.transactional_writer(SCOPE, stream, lease_ms=LEASE_MS) as writer:
            transaction = writer.begin()
            transaction.write_batch([b"%d" % number] * EVENTS, routing_keys=keys)
            transaction.flush()
            return stream, transaction.id

    found: dict[str, list[str]] = {stream: [] for stream in streams}
    with ThreadPoolExecutor(WRITERS) as threads:
        for stream, identifier in threads.map(write, range(batch.transactions)):
            found[stream].append(identifier)
    return found


def wait_until_visible(headrace: Headrace, members: Mapping[str, Sequence[str]]) -> None:
    """Asks for the last transaction of each stream, which is committed last."""
    deadline_s = time.monotonic() + VISIBLE_WITHIN_S
    for stream, ids in members.items():
        while headrace.admin.transactions.get(SCOPE, stream, ids[-1]).state is not TransactionState.COMMITTED:
            if time.monotonic() > deadline_s:
                raise WrongResultError(f"transactions of {stream} are not visible after {VISIBLE_WITHIN_S} s")
            time.sleep(POLL_S)


def measure(results: Results, headrace: Headrace, stack: Mapping[str, Any], batch: Batch, epoch: int) -> None:
    """One round of one batch."""
    members = begin(headrace, batch)
    home = next(iter(members))
    processes = {
        "the controller": stack["pid"],
        "the AWS emulator": stack["awsPid"],
        "the segment store": stack["segmentStores"][0]["pid"],
    }
    before = {name: processor_s(pid) for name, pid in processes.items()}
    own_s, started_s = time.process_time(), time.monotonic()
    answer = headrace.admin.transactions.commit_all(
        SCOPE, home, members, writer="benchmark", epoch=epoch, abort_labels="none"
    )
    answered_s = time.monotonic() - started_s
    wait_until_visible(headrace, members)
    visible_s = time.monotonic() - started_s
    own_s = time.process_time() - own_s
    spent = {name: processor_s(pid) - before[name] for name, pid in processes.items()}
    if not answer.new or headrace.admin.transactions.list_open(SCOPE, home):
        raise WrongResultError(f"{batch.name}: not all of them are committed")
    results.add(f"{batch.name}, answered", answered_s, "s")
    results.add(f"{batch.name}, visible", visible_s, "s")
    for name, processor in spent.items():
        results.add(f"{batch.name}, processor of {name}", processor, "s")
    results.add(f"{batch.name}, processor of the client", own_s, "s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commit_sets", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    parser.add_argument("--most", type=int, default=2_000, help="leave out the batches with more transactions")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; figures mean nothing")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    batches = [each for each in (QUICK if options.quick else BATCHES) if each.transactions <= options.most]
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    with (
        tempfile.TemporaryDirectory(prefix="stack-", dir=options.output) as scratch,
        running_stack(Path(scratch), segment_stores=1) as stack,
        connect(stack["endpoints"]["http"]) as headrace,
    ):
        headrace.admin.create_scope(SCOPE, exist_ok=True)
        measure(Results(), headrace, stack, QUICK[0], 0)  # the first call of a process imports and connects
        epoch = 0
        for _ in range(options.rounds):
            for batch in batches:
                epoch += 1
                measure(results, headrace, stack, batch, epoch)
                print(f"{batch.name} done", file=sys.stderr, flush=True)
    settings = {
        "rounds": options.rounds,
        "segments": SEGMENTS,
        "events": EVENTS,
        "batches": [asdict(batch) for batch in batches],
    }
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "commit-sets.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m benchmarks.failover`: how long no acknowledgement arrives when the owner of a segment is lost.

A writer sends 1,000 events/s to one segment of a deployment with three stores and three copies. The store that serves
the segment is killed with its volume, stopped, paused, or cut off from the other stores. The figure is the longest time
between two acknowledgements. Each round takes all faults in turn, each with a new stream, and begins when every log has
three copies. Each event must be acknowledged in the end, and be in the stream once and in its place.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import machine_facts, versions
from benchmarks.pacing import paced_ns
from benchmarks.relayed_stack import RelayedStack, relayed_stack
from benchmarks.results import Results, document
from fuzz.replicated_stores import Store
from headrace.client import Headrace, ScalingPolicy, connect
from headrace.model.names import container_of_segment, segment_name

SCOPE: Final = "failover"
ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """One run. The fault comes after `lead_s`; the writer goes on for `tail_s` after it."""

    rounds: int = ROUNDS
    rate_per_s: int = 1_000
    event_bytes: int = 100
    lead_s: float = 3.0
    tail_s: float = 20.0
    cache_bytes: int = 64 << 20
    flush_age_s: float = 1.0


class WrongResultError(Exception):
    """The deployment did not do what is measured."""


Undo = Callable[[], None]


def kill_with_volume(stack: RelayedStack, store: Store) -> Undo:
    store.lose()
    return lambda: stack.group.start(store)


def stop(stack: RelayedStack, store: Store) -> Undo:
    if not stack.group.stop(store):
        raise WrongResultError(f"the graceful shutdown of {store.store_id} failed")
    return lambda: stack.group.start(store)


def pause(_stack: RelayedStack, store: Store) -> Undo:
    store.process.pause()
    return store.process.resume


def cut_off(stack: RelayedStack, store: Store) -> Undo:
    others = [each.store_id for each in stack.group.stores if each is not store]
    stack.cuts.cut(*[cut for other in others for cut in ((store.store_id, other), (other, store.store_id))])
    return stack.cuts.heal


FAULTS: Final[dict[str, Callable[[RelayedStack, Store], Undo]]] = {
    "killed with its volume": kill_with_volume,
    "stopped by SIGTERM": stop,
    "paused by SIGSTOP": pause,
    "cut off from the other stores": cut_off,
}


def longest_gap_s(times_ns: Iterable[int]) -> float:
    """Raises ValueError for fewer than two acknowledgements."""
    return max(after - before for before, after in itertools.pairwise(sorted(times_ns))) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    settings, facts, results = FailoverSettings(rounds=options.rounds), machine_facts(), Results()
    limits = {
        "HEADRACE_CACHE_BYTES": str(settings.cache_bytes),
        "HEADRACE_FLUSH_AGE_S": str(settings.flush_age_s),
        "HEADRACE_STOP_DEADLINE_S": "20",
    }
    with relayed_stack(options.output, limits) as stack, connect(stack.url) as headrace:
        headrace.admin.create_scope(SCOPE)
        for number in range(settings.rounds):
            for name, fault in FAULTS.items():
                gap_s = measure(stack, headrace, f"{fault.__name__.replace('_', '-')}-{number}", fault, settings)
                results.add(f"no acknowledgement, store {name}", gap_s, "s")
    written = document(results, machine=facts, versions=versions(), settings=asdict(settings))
    (options.output / "failover.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


def measure(
    stack: RelayedStack,
    headrace: Headrace,
    stream: str,
    fault: Callable[[RelayedStack, Store], Undo],
    settings: FailoverSettings,
) -> float:
    """The longest time between two acknowledgements, in seconds, with a fault of the store that serves the stream."""
    asyncio.run(stack.group.complete())
    headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(1))
    store = _owner(stack, stream)
    undone: list[Undo] = []
    failing = threading.Thread(target=lambda: undone.append(fault(stack, store)), name="fault")
    timer = threading.Timer(settings.lead_s, failing.start)
    gc.disable()  # full collections would count as time without acknowledgements
    try:
        timer.start()
        gap_s = longest_gap_s(_write(headrace, stream, settings))
    finally:
        gc.enable()
        timer.join()
        failing.join()
        for undo in undone:
            undo()
    if not undone:
        raise WrongResultError(f"{store.store_id} was not lost")
    _check(headrace, stream, settings)
    return gap_s


def _owner(stack: RelayedStack, stream: str) -> Store:
    """The store that serves the only segment of a new stream."""
    owners = stack.group.owners()
    container = container_of_segment(segment_name(SCOPE, stream, 0), len(owners))
    return next(each for each in stack.group.stores if each.store_id == owners[container])


def _write(headrace: Headrace, stream: str, settings: FailoverSettings) -> list[int]:
    """Write event after event when it is due. Returns when acknowledgements came, on the monotonic clock."""
    times_ns: list[int] = []

    def note(_acknowledged: Any) -> None:
        times_ns.append(time.monotonic_ns())

    total = _event_count(settings)
    rest = bytes(settings.event_bytes - 8)
    with headrace.writer(SCOPE, stream) as writer:
        last: object = None
        for number, _due_ns in enumerate(paced_ns(settings.rate_per_s, total)):
            ack = writer.write(number.to_bytes(8, "big") + rest, routing_key="one")
            if ack is not last:  # the events of a batch share it
                ack.add_done_callback(note)
            last = ack
        writer.flush()
        if writer.acknowledged_events != total:
            raise WrongResultError(f"{writer.acknowledged_events} of {total} events were acknowledged")
    return times_ns


def _check(headrace: Headrace, stream: str, settings: FailoverSettings) -> None:
    """Raises WrongResultError unless every event is there once, in its place."""
    headrace.admin.seal_stream(SCOPE, stream)
    with headrace.reader(SCOPE, stream, start="earliest") as reader:
        found = [int.from_bytes(each.event[:8], "big") for each in reader]
    if found != list(range(_event_count(settings))):
        raise WrongResultError(f"{len(found)} events of {_event_count(settings)} are in the stream, or not in order")


def _event_count(settings: FailoverSettings) -> int:
    return int(settings.rate_per_s * (settings.lead_s + settings.tail_s))


if __name__ == "__main__":
    raise SystemExit(main())

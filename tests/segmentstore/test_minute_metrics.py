"""What a store reports to CloudWatch once a minute."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from io import StringIO

import pytest
from store_world import ManualClock, World

from headrace.adapters import log_lines
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.embedded_metrics import STORE_METRICS
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.ports.metadata_store import Key, Replace, WriteConflictError
from headrace.segmentstore.metrics import (
    LATENCY_BOUNDS_S,
    Histogram,
    MeasuredChunkStorage,
    MeasuredJournalDisk,
    MeasuredMetadataStore,
    percentile,
)
from headrace.zones import UNKNOWN_ZONE
from segmentstore_fargate.log_watch import ACKNOWLEDGE_S_MAX
from segmentstore_fargate.metrics_page import MeasuredStore
from segmentstore_fargate.minute_metrics import MINUTE_S, READINGS, MinuteMetrics, MinuteReport

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"


def _minute(running) -> tuple[MinuteMetrics, MeasuredStore]:
    clock = running.world.clock
    measured = MeasuredStore(
        running.store,
        running.listener,
        running.journal,
        MeasuredJournalDisk(MemoryJournalDisk(), clock).metrics,
        MeasuredChunkStorage(running.world.chunks, clock),
        MeasuredMetadataStore(running.world.metadata, clock),
        lambda: True,
        lambda: 0,
        log_storage=MeasuredChunkStorage(running.world.log_chunks, clock),
    )
    return MinuteMetrics(measured, clock), measured


def test_each_declared_metric_is_read():
    assert list(READINGS) == [metric.name for metric in STORE_METRICS]


def test_a_bucket_ends_where_an_acknowledgement_is_slow():
    assert ACKNOWLEDGE_S_MAX in LATENCY_BOUNDS_S
    assert ACKNOWLEDGE_S_MAX == 0.05


async def test_a_minute_has_what_happened_since_the_last_one(world: World):
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"x" * 3000)
        minute, measured = _minute(running)
        measured.journal_metrics.commit_seconds.record(0.004)
        world.clock.advance(4)
        first = minute.read()
        second = minute.read()
        await client.append(7, 2, b"x" * 500)
        for seconds in (0.051, 0.2, 0.2, 0.2):
            measured.store.metrics.append_seconds.record(seconds)
        third = minute.read()
    assert first["Acks"] == first["AcksFast"] == 1
    assert (first["BytesIn"], first["EventsIn"], first["FlushLagSeconds"]) == (3000, 1, 4)
    assert 0 < first["AckP50Ms"] < 0.2, "the clock stands still: within the first bucket"
    assert 2 < first["CommitP99Ms"] < 5
    assert first["UnflushedRatio"] == 100 * 3000 / measured.store.pool.capacity_bytes
    assert (first["Connections"], first["Ready"]) == (1, 1)
    assert first["ConnectionsUsed"] == 100 / running.listener.connections_max
    counts = {metric.name for metric in STORE_METRICS if metric.unit in ("Count", "Bytes", "Seconds")}
    gauges = {"Connections", "Ready", "FlushLagSeconds"}
    assert {second[name] for name in counts - gauges} == {0}
    assert not {"AckP50Ms", "AckP99Ms", "CommitP99Ms", "CertificateDaysLeft"} & second.keys(), "absent, not 0"
    assert (third["Acks"], third["AcksFast"], third["BytesIn"]) == (5, 1, 500)
    assert third["AckP50Ms"] > 100, "of this minute, not of all time"


async def test_errors_are_those_of_aws_not_lost_races(world: World):
    async with world.running() as running:
        minute, measured = _minute(running)
        assert (minute.read()["MetadataErrors"], minute.read()["StorageErrors"]) == (0, 0)
        with pytest.raises(WriteConflictError):
            measured.metadata_store.write(Replace(Key("a", "b"), {}, 7))
        measured.metadata_store.requests["get"].count_error(UnavailableError.code)
        with pytest.raises(NotFoundError):
            await measured.chunk_storage.read("none", 0, 1)
        assert measured.log_storage is not None
        measured.log_storage.requests["put"].count_error(UnavailableError.code)
        values = minute.read()
    assert (values["MetadataErrors"], values["StorageErrors"]) == (1, 2)


async def test_refusals_count_whatever_their_reason(world: World):
    async with world.running() as running:
        minute, measured = _minute(running)
        metrics = measured.store.metrics
        metrics.connections_refused.update(total=2, address=1)
        metrics.tokens_refused.update(a=4)
        metrics.handshakes_failed.update(b=5)
        metrics.throttled_s += 1.5
        metrics.read_bytes += 6
        values = minute.read()
    assert (values["ConnectionsRefused"], values["TokenFailures"], values["TlsFailures"]) == (3, 4, 5)
    assert (values["ThrottledSeconds"], values["BytesOut"]) == (1.5, 6)


async def test_bytes_to_other_zones_are_of_known_ones(world: World):
    async with world.running() as running:
        minute, measured = _minute(running)
        measured = replace(measured, zone="use1-az1")
        minute.measured = measured
        sent = measured.store.metrics.sent_bytes
        sent.update({"use1-az1": 1, "use1-az2": 20, "use1-az3": 300, UNKNOWN_ZONE: 4000})
        assert minute.read()["BytesToOtherZones"] == 320
        sent["use1-az2"] += 5
        assert minute.read()["BytesToOtherZones"] == 5


async def test_a_container_that_was_opened_again_counts_from_0(world: World):
    """Its bytes of before were reported, and its new total may be larger or smaller than the old one."""
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"x" * 100)
        minute, _ = _minute(running)
        minute.read()
        await client.append(7, 2, b"x" * 30)
        container = running.store.owner_of(SEGMENT).container
        container.metrics, left = type(container.metrics)(), container.metrics
        container.metrics.append_bytes = 250
        assert left.append_bytes == 130
        assert minute.read()["BytesIn"] == 250


async def test_a_failing_reading_is_logged_once_and_hides_no_other(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async with world.running() as running:
        minute, measured = _minute(running)
        minute.measured = replace(measured, serves=lambda: 1 // 0)
        measured.store.metrics.throttled_s = math.inf
        first, second = minute.read(), minute.read()
    assert first.keys() == second.keys()
    assert {metric.name for metric in STORE_METRICS} - first.keys() == {
        *("Ready", "ThrottledSeconds", "AckP50Ms", "AckP99Ms", "CommitP99Ms", "CertificateDaysLeft")
    }
    lines = [record.getMessage() for record in caplog.records if "metric_not_read" in record.getMessage()]
    assert lines == ["event=metric_not_read metric=ThrottledSeconds", "event=metric_not_read metric=Ready"]


async def test_urgent_bytes_have_their_true_age(world: World):
    """A table that waits for room has its segment flushed at once: that is no age."""
    async with world.running() as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 7)
        await client.append(7, 1, b"x" * 30)
        running.store.owner_of(SEGMENT).container.metadata.segments[SEGMENT].is_urgent = True
        world.clock.advance(4)
        minute, _ = _minute(running)
        assert minute.read()["FlushLagSeconds"] == 4
        world.clock.advance(-4)


def test_a_report_is_a_line_of_the_log(monkeypatch: pytest.MonkeyPatch):
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    MinuteReport(lambda: {"Acks": 2}, "headrace-store-1", ManualClock(), log_lines.write_document).report()
    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert (document["Service"], document["Acks"], document["_aws"]["Timestamp"]) == ("headrace-store-1", 2, 1_000_000)


def test_a_failing_report_is_logged_once_and_goes_on(caplog: pytest.LogCaptureFixture):
    written: list[str] = []

    def write(line: str) -> None:
        if len(caplog.records) == 0 or not values:
            raise OSError("broken pipe")
        written.append(line)

    values = {"Acks": 1.0}
    report = MinuteReport(lambda: values, "headrace-store-1", ManualClock(), write)
    report.report()
    report.report()
    values["Ahem"] = 1.0
    report.report()
    assert (len(written), [record.getMessage() for record in caplog.records]) == (1, ["event=metrics_not_reported"])


@pytest.mark.parametrize(("at_s", "rest_s"), [(30.0, 60.0), (29.9, 60.1), (31.0, 59.0), (0.0, 30.0), (10.0, 80.0)])
def test_each_minute_gets_one_report(at_s: float, rest_s: float):
    clock = ManualClock()
    clock.ms = int(1_000 * (20 * MINUTE_S + at_s))
    assert MinuteReport(dict, "s", clock, print).rest_s() == pytest.approx(rest_s)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([0.04], 0.5, 0.035),
        ([0.04, 0.04], 0.99, 0.02 + 0.03 * 0.99),
        ([0.001, 0.04, 0.04, 0.04], 0.25, 0.001),
        ([40.0], 0.5, 30.0),
        ([0.1, 40.0], 0.5, 0.1),
    ],
)
def test_percentiles_are_interpolated_in_their_bucket(values: list[float], share: float, expected: float | None):
    histogram = Histogram(LATENCY_BOUNDS_S)
    for value in values:
        histogram.record(value)
    assert percentile(histogram.bounds, histogram.counts, share) == pytest.approx(expected)

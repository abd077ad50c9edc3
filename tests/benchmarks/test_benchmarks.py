"""The parts of the benchmark that could lie: percentiles, ratios, the raw measurements, and what is published."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path

import botocore.session
import pytest

from benchmarks import metadata_calls, raw_limits, recovery
from benchmarks.latencies import Latencies
from benchmarks.machine import ProcessorTime, machine_facts, versions
from benchmarks.plain_metadata_calls import PlainMetadataCalls
from benchmarks.results import Results, document
from benchmarks.settings import KIB, MIB, AppendLoad, Settings
from benchmarks.workloads import Throughput
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore


def test_percentiles_are_by_nearest_rank():
    assert Latencies.of_ns(n * 1_000_000 for n in range(100, 0, -1)) == Latencies(100, 50.0, 95.0, 99.0, 100.0)
    assert Latencies.of_ns([7_000_000]) == Latencies(1, 7.0, 7.0, 7.0, 7.0)
    assert Latencies.of_ns([1_000_000] * 98 + [9_000_000] * 2).p99_ms == 9.0
    with pytest.raises(ValueError, match="no latencies"):
        Latencies.of_ns([])


def test_throughput_counts_payload():
    assert Throughput.of(AppendLoad(event_bytes=100, events=1_000_000), 2.0) == Throughput(500_000.0, 50.0)


def test_figures_are_medians_beside_raw_medians():
    results = Results()
    for raw, ours in [(100.0, 50.0), (1000.0, 90.0), (200.0, 60.0)]:
        results.add("raw: disk", raw, "MB/s")
        results.add("append", ours, "MB/s", beside="raw: disk")
    figure = results.as_json()["append"]
    assert figure == {
        "unit": "MB/s", "median": 60.0, "rounds": [50.0, 90.0, 60.0], "beside": "raw: disk", "of_beside": 0.3,
    }  # fmt: skip
    header, rule, raw_line, line = results.table().splitlines()
    assert "beside its limit" in header
    assert set(rule) == {"-"}
    assert raw_line.split() == ["raw:", "disk", "200", "MB/s", "100", "-", "1,000"]
    assert line.split()[:6] == ["append", "60.00", "MB/s", "50.00", "-", "90.00"]
    assert line.endswith("0.30 x raw: disk (200 MB/s)")


def test_raw_writes_are_counted_and_leave_nothing(tmp_path: Path):
    for recycled_bytes in (None, 1024 * 1024):
        writes = raw_limits.synced_writes(tmp_path, 4096, 0.01, recycled_bytes=recycled_bytes)
        assert writes.mb_per_s == pytest.approx(writes.per_second * 4096 / 1e6)
        assert writes.latencies.count >= 1
        assert writes.latencies.p50_ms <= writes.latencies.p99_ms <= writes.latencies.max_ms
    paced = raw_limits.paced_synced_writes(tmp_path, 4096, 1_000, 0.02, 16 * 4096)
    assert paced.count == 20
    assert 0 < paced.p50_ms <= paced.p99_ms
    assert list(tmp_path.iterdir()) == []


def test_loopback_moves_bytes():
    assert raw_limits.loopback_copy_mb_per_s(0.01) > 0
    assert raw_limits.python_additions_per_s(0.01) > 0
    late = raw_limits.late_wakes(1_000, 0.02)
    assert late.count == 20
    assert 0 < late.p50_ms <= late.p99_ms


def test_results_can_be_published():
    results = Results()
    results.add("raw", 1.0, "ms")
    text = json.dumps(document(results, machine=machine_facts(), versions=versions(), settings=asdict(Settings())))
    written = json.loads(text)
    assert written["machine"]["cores"] >= 1
    assert written["versions"]["headrace"]
    assert written["settings"]["rounds"] == Settings().rounds
    assert str(Path.cwd()) not in text


def test_what_the_host_kept_back_is_a_share_of_what_was_wanted():
    before = ProcessorTime.of_line("cpu  100 10 50 9000 70 3 7 30 0 0")
    after = ProcessorTime.of_line("cpu  140 10 70 9900 70 3 7 50 0 0")
    assert after.stolen_percent_since(before) == 25.0
    assert after.stolen_percent_since(after) == 0.0
    assert (now := ProcessorTime.now()) is None or now.used > 0


def test_a_recovery_is_measured_on_the_log_that_was_asked_for(tmp_path: Path):
    measured = recovery.recover(tmp_path, 2 * MIB, 64 * KIB, 0.75)
    assert measured.loaded_bytes == 512 * KIB
    assert 2 * MIB < measured.log_bytes < 2.1 * MIB
    assert 0 < measured.until_appends_s < measured.seconds
    assert measured.until_appends_s == measured.scan_s + measured.replay_s


def test_cores_are_busy_for_as_long_as_it_is_asked_for() -> None:
    before = _children()
    with raw_limits.busy_cores():
        running = _children() - before
        assert len(running) >= (os.cpu_count() or 1)
    assert not running & _children()


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split())


def test_both_sides_of_metadata_calls_answer_the_same():
    """Else the two would not be compared at the same work."""
    session = botocore.session.Session()
    session.set_credentials("benchmark", "benchmark")
    session.set_config_variable("region", "us-east-1")
    client = metadata_calls.answered_client(session)
    plain, adapter = PlainMetadataCalls(metadata_calls.TABLE, client), DynamoMetadataStore(metadata_calls.TABLE, client)
    answers = {name: (call(plain), call(adapter)) for name, call in metadata_calls.CALLS.items()}
    assert all(plain_answer == adapter_answer for plain_answer, adapter_answer in answers.values())
    assert answers["query of 20"][0] is not None

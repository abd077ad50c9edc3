"""The comparison with Kafka: what is measured, in which turns, and what is printed. A run needs Kafka itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka_broker, peers
from benchmarks.peers import (
    DEFAULT,
    FLUSHED,
    OURS,
    SIDES,
    TOPIC_CONFIG,
    Side,
    behind,
    comparison,
    figures,
    measure_round,
    rows,
    turns,
)
from benchmarks.results import Results
from benchmarks.settings import QUICK, Settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "build" / "bench-peers" / "packages"


def _side(name: str) -> Side:
    return Side(name, "127.0.0.1:1", 1, lambda _stream: None, lambda _stream: None)


def _figure(median: float, unit: str = "MB/s") -> dict[str, Any]:
    return {"median": median, "unit": unit}


@pytest.mark.parametrize("settings", [Settings(), QUICK])
def test_every_row_of_the_comparison_is_measured(settings: Settings) -> None:
    found = rows(settings)
    assert [row.name for row in found] == [
        "append, 100 B, one by one",
        "append, 100 B, batches",
        "append, 1 KiB, batches",
        "append, 10 KiB, batches",
        "acknowledged at 1,000/s of 1 KiB",
        "acknowledged at 10,000/s of 1 KiB",
        "written for catch-up",
        "catch-up",
    ]
    assert [row.rate for row in found if row.what == "paced"] == [1_000, 10_000]
    assert found[-1].load == found[-2].load, "it reads what was written"


def test_each_round_begins_with_another_side() -> None:
    sides = [_side(name) for name in SIDES]
    orders = [[side.name for side in turns(number, sides)] for number in range(4)]
    assert [order[0] for order in orders] == [OURS, FLUSHED, DEFAULT, OURS]
    assert all(sorted(order) == sorted(SIDES) for order in orders)


def test_sides_know_their_client() -> None:
    assert [_side(name).kind for name in SIDES] == ["headrace", "kafka", "kafka"]
    assert TOPIC_CONFIG == {FLUSHED: {"flush.messages": "1"}, DEFAULT: {}}


def test_a_burst_gives_rates_and_bytes_per_core() -> None:
    row = rows(Settings())[2]
    megabytes = row.load.events * 1024 / 1e6
    found = figures(row, {"seconds": 2.0, "processor_s": 0.5}, 4.0)
    assert found == {
        row.name: (megabytes / 2, "MB/s"),
        f"{row.name}, rate": (row.load.events / 2, "events/s"),
        f"{row.name}, bytes per core of the server": (megabytes / 4, "MB/s"),
        f"{row.name}, bytes per core of the client": (megabytes * 2, "MB/s"),
    }
    without = figures(row, {"seconds": 2.0, "processor_s": 0.5}, 0.0)
    assert set(found) - set(without) == {f"{row.name}, bytes per core of the server"}, "it was not counted"


def test_a_server_is_charged_for_one_measurement_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has done before is not counted; its work on the stream after the last acknowledgement is."""
    row, processor_s, streams = rows(QUICK)[2], 100.0, list[str]()

    def work(*_: object) -> dict[str, float]:
        nonlocal processor_s
        processor_s += 2
        return {"seconds": 2.0, "processor_s": 0.5}

    side = Side(OURS, "127.0.0.1:1", 1, streams.append, work)
    monkeypatch.setattr(peers, "rows", lambda _settings: [row])
    monkeypatch.setattr(peers, "processor_s", lambda _pid: processor_s)
    monkeypatch.setattr(peers, "_run", work)
    results = Results()
    for number in range(2):
        measure_round(results, [side], number, QUICK)
    result = results.as_json()[f"{row.name}, bytes per core of the server: {OURS}"]
    assert result["rounds"] == pytest.approx([row.load.events * row.load.event_bytes / 1e6 / 4] * 2, rel=0.01)
    assert len(set(streams)) == 2


def test_a_pace_gives_two_percentiles() -> None:
    row = rows(Settings())[4]
    found = figures(row, {"count": 9, "p50_ms": 0.5, "p95_ms": 0.7, "p99_ms": 1.5, "max_ms": 9.0}, 1.0)
    assert found == {f"{row.name}, p50": (0.5, "ms"), f"{row.name}, p99": (1.5, "ms")}


def test_less_is_better_for_times_and_worse_for_the_rest() -> None:
    assert behind({OURS: _figure(10), FLUSHED: _figure(9), DEFAULT: _figure(11)}) == [DEFAULT]
    assert behind({OURS: _figure(10, "ms"), FLUSHED: _figure(9, "ms"), DEFAULT: _figure(11, "ms")}) == [FLUSHED]
    assert behind({OURS: _figure(10), DEFAULT: _figure(10)}) == []
    assert behind({DEFAULT: _figure(10)}) == []


def test_the_table_has_a_column_for_each_side() -> None:
    results = {f"catch-up: {side}": _figure(1000.0 * at) for at, side in enumerate(SIDES, 1)}
    head, line = comparison(results).splitlines()
    assert head.split() == ["Headrace", "Kafka,", "flushed", "Kafka,", "default", "unit", "behind"]
    assert line.split()[:4] == ["catch-up", "1,000", "2,000", "3,000"]
    assert line.endswith("MB/s  Kafka, flushed, Kafka, default")


def test_the_broker_is_its_own_controller() -> None:
    text = kafka_broker.broker_properties(1, 2, Path("logs"))
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["controller.quorum.voters"] == "1@127.0.0.1:2"
    assert lines["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert lines["log.dirs"] == "logs"
    assert [name for name in lines if "flush" in name] == [], "the broker has Kafka's defaults; topics differ"


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/java")
    assert "has no Kafka: run `make bench-peers`" in (kafka_broker.missing_tool(tmp_path) or "")
    (tmp_path / "kafka_2.13-4.1.1.jar").touch()
    assert kafka_broker.missing_tool(tmp_path) is None
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert kafka_broker.missing_tool(tmp_path) == "Java 17 is not installed"


@pytest.mark.nightly
@pytest.mark.skipif(
    kafka_broker.missing_tool(ROOT / kafka_broker.JARS) is not None or not PACKAGES.is_dir(),
    reason="Kafka is not at hand: run `make bench-peers`",
)
def test_a_quick_run_measures_all_sides(tmp_path: Path) -> None:
    """Where `make bench-peers` has been run: it fetches Kafka and its client."""
    command = [sys.executable, "-m", "benchmarks.peers", "--quick", "--output", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    written = json.loads((tmp_path / "peers.json").read_text())
    assert written["settings"]["is_quick"] is True
    measured = {name.rpartition(": ")[0] for name in written["figures"]}
    assert {row.name for row in rows(QUICK) if row.what != "paced"} <= measured
    for side in SIDES:
        assert written["figures"][f"acknowledged at 10,000/s of 1 KiB, p99: {side}"]["median"] > 0
        assert f"catch-up: {side}" in written["figures"]
    assert {path.name for path in tmp_path.iterdir()} == {"peers.json"}

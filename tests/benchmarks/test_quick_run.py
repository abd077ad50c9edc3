"""The benchmark as a user starts it, small: real processes, every figure present, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.clients import has_package

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_a_quick_run_gives_every_figure(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "results.json").read_text())
    figures = written["figures"]
    for size in ("100 B", "1 KiB", "10 KiB"):
        assert figures[f"append, {size} events"]["beside"] == f"prototype: append, {size} events"
        assert figures[f"append, {size} events, processor of the store"]["unit"] == "us an event"
    for rate in ("1,000/s", "10,000/s"):
        for what in ("acknowledged", "end to end"):
            p50, p99 = (figures[f"{what}, at {rate} of 1 KiB, {part}"]["median"] for part in ("p50", "p99"))
            assert 0 < p50 <= p99
        assert figures[f"acknowledged, at {rate} of 1 KiB, p99"]["beside"].startswith("prototype: acknowledged")
    assert figures["append, 100 B events one by one, rate"]["beside"] == "prototype: append, 100 B events, rate"
    assert figures["acknowledged, 30 active segments, p95"]["beside"] == "acknowledged, 10 active segments, p95"
    assert figures["acknowledged, beside a catch-up reader, p99"]["beside"] == "acknowledged, no catch-up reader, p99"
    assert figures["acknowledged, during compaction, p99"]["beside"] == "acknowledged, no compaction, p99"
    assert figures["recovery of 64 MiB of log, appends of 16 KiB"]["unit"] == "s"
    assert 0 < figures["resident memory of the store, cache included"]["of_beside"] < 1
    assert figures["catch-up from the store's memory"]["unit"] == "MB/s"
    history = figures["catch-up straight from the S3 double"]
    assert history["beside"] == "raw: ranged GET of 32 MiB from the S3 double"
    if has_package():
        ours = figures["both clients, 2 segments: ours, batches, rate"]
        assert ours["beside"] == "both clients, 2 segments: theirs, rate"
        assert figures["both clients, 2 segments: read, ours, batches, payload"]["unit"] == "MB/s"
        assert figures.pop("both clients, 2 segments: theirs, ended with an error")["median"] == 0
        assert figures.pop("both clients, 2 segments: read, theirs, ended with an error")["median"] == 0
    else:
        assert "not compared: the package `pravega` is not installed" in done.stderr
    measured = {name: figure for name, figure in figures.items() if "processor" not in name}  # counted in 10 ms
    assert all(len(figure["rounds"]) == 1 and figure["median"] > 0 for figure in measured.values())
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "local-stack.log"}
    assert str(tmp_path) not in json.dumps(written)
    for name in figures:
        assert name in done.stdout

"""`headrace event read --times`: what the watermarks of a stream tell of the times of its events."""

from __future__ import annotations

import json

import pytest
from command_line import Run, runner
from real_cluster import RealCluster, connected_to

from functions import wiring
from headrace import topology
from headrace.cli import session
from headrace.client import Headrace, ScalingPolicy


@pytest.fixture
def run(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`run("--times")` runs `headrace event read` on a stream of one segment, whose writer notes its time twice."""
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(real))
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as writer:
        for noted in (10, 20):
            for number in range(2):
                writer.write(b"%d" % (noted + number), "key")
            writer.note_time(noted)
            for bucket in range(topology.BUCKET_COUNT):
                wiring.watermark_ticks().run(bucket)

    return runner(capsys, "event", "read", "shop/orders")


def test_events_have_the_bounds_of_their_times(run: Run):
    ran = run("--times", "--format", "json")
    assert ran.code == 0, ran
    documents = [json.loads(line) for line in ran.out.splitlines()]
    bounds = [(each["event"], each["timeLower"], each["timeUpper"]) for each in documents]
    assert bounds == [("10", None, 10), ("11", None, 20), ("20", 10, 20), ("21", 10, None)]
    assert run("--times").out.splitlines() == ["-..10  10", "-..20  11", "10..20  20", "10..-  21"]


def test_without_the_option_no_times_are_shown(run: Run):
    assert run().out.splitlines() == ["10", "11", "20", "21"]
    assert "timeLower" not in run("--json").out


def test_raw_events_have_no_room_for_times(run: Run):
    ran = run("--times", "--format", "raw")
    assert ran.code == 2
    assert "--times needs another format than raw" in " ".join(ran.err.split())

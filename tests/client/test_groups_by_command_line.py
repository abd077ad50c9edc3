"""`headrace group lag` and `headrace group reset` for groups whose readers keep their state in the group's stream."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from command_line import Run, runner
from real_cluster import RealCluster, WorkingQueue, connected_to

from functions import wiring
from headrace.cli import session
from headrace.client import (
    GroupReader,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    IllegalStateError,
    NotFoundError,
    ReaderGroup,
    ReaderGroupConfiguration,
    RetentionMode,
    ScalingPolicy,
    UnavailableError,
)

GROUP = "shop/billing"


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the stream `orders` of one segment, in which ten events are, and the group `billing` that publishes."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    _write(headrace, range(10))
    reads = ReaderGroupConfiguration(
        (GroupStream("shop", "orders"),), RetentionMode.MANUAL, automatic_checkpoint_interval_ms=0
    )
    headrace.admin.reader_groups.create("shop", "billing", reads)
    return headrace


@pytest.fixture
def run(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`run("lag", GROUP)` runs `headrace group`."""
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(real))
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")

    return runner(capsys, "group")


def _write(headrace: Headrace, numbers: range) -> None:
    with headrace.writer("shop", "orders") as writer:
        writer.write_batch([b"%03d" % number for number in numbers], "key")


def _read(reader: GroupReader, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        batch = reader.read_batch()
        assert batch is not None
        numbers += map(int, batch.events)
    return numbers


def _lag(run: Run) -> dict[str, Any]:
    ran = run("lag", GROUP, "--json")
    assert (ran.code, ran.err) == (0, "")
    return dict(ran.document)


def test_lag_is_that_of_the_readers(run: Run, headrace: Headrace) -> None:
    """The published position is still the start."""
    with headrace.reader_group("shop", "billing") as group:
        with group.reader() as reader:
            assert _read(reader, 10) == list(range(10))
        _write(headrace, range(10, 14))
    shown = _lag(run)
    assert (shown["source"], shown["lagBytes"], shown["lagEvents"]) == ("readers", 4 * 11, 4)
    assert shown["lagEventsEstimated"] is False
    assert shown["segments"] == [
        {
            "scope": "shop", "stream": "orders", "segmentId": 0, "lagBytes": 44, "lagEvents": 4,
            "lagEventsEstimated": False,
        }
    ]  # fmt: skip
    assert run("lag", GROUP).out.splitlines() == ["STREAM       LAG   EVENTS", "shop/orders  44 B  4"]


def test_describe_says_who_reads_what(run: Run, headrace: Headrace) -> None:
    early = run("describe", GROUP)
    assert early.code != 0
    assert "no reader has joined" in early.err
    with headrace.reader_group("shop", "billing") as group:
        assert json.loads(run("describe", GROUP, "--json").out)["unassigned"][0]["lagBytes"] == 110
        with group.reader("r-1") as reader:
            _read(reader, 10)
            shown = json.loads(run("describe", GROUP, "--json").out)
            (told,) = shown["readers"]
            (segment,) = told["segments"]
            assert (told["reader"], segment["segmentId"], shown["unassigned"]) == ("r-1", 0, [])
            assert (segment["unreadBytes"], segment["lagBytes"]) == (110 - segment["position"], 110)
            told_ms = group.last_seen()["r-1"].timestamp() * 1000
            assert abs(told["lastSeenMs"] - told_ms) <= 1
            table = run("describe", GROUP).out
            assert "shop/orders" in table
            assert "SINCE CHECKPOINT" in table
            assert "r-1" in table
        assert json.loads(run("describe", GROUP, "--json").out)["readers"] == []
        assert "no reader" in run("describe", GROUP).out


def test_what_is_unread_counts_from_where_readers_are(run: Run, headrace: Headrace) -> None:
    with headrace.reader_group("shop", "billing") as group:
        with group.reader("r-1", GroupReaderOptions(lease_s=0.2)) as reader:
            _read(reader, 10)
            reader.read_batch(timeout_s=0)  # so that the ten are processed
            while set(group.status().readers[0].positions.values()) != {110}:
                time.sleep(0.01)
            seen = group.last_seen()["r-1"]
            while group.last_seen()["r-1"] <= seen:
                time.sleep(0.01)
            (told,) = json.loads(run("describe", GROUP, "--json").out)["readers"]
            described = run("describe", GROUP).out
            assert "< 30 s" in described
            assert re.search(r"  \d+ s ago$", described, re.MULTILINE)
            assert "slowest reader  < 30 s behind" in run("lag", GROUP).out
        assert told["secondsBehind"] == 0
        (segment,) = told["segments"]
        assert (segment["position"], segment["unreadBytes"], segment["lagBytes"]) == (110, 0, 110)
        assert group.last_seen() == {}


def test_estimates_are_shown_as_estimates(run: Run, headrace: Headrace) -> None:
    _write(headrace, range(10_000))
    with headrace.reader_group("shop", "billing") as group, group.reader() as reader:
        reader.read_batch()
        _write(headrace, range(10_000))
    shown = _lag(run)
    assert shown["lagEventsEstimated"] is True
    assert f"about {shown['lagEvents']}" in run("lag", GROUP).out


def test_groups_without_readers_have_their_published_lag(run: Run, headrace: Headrace) -> None:
    """Asking does not write a state, which would hide what is published later."""
    for published in (False, True):
        if published:
            cut = headrace.admin.stream_cut("shop", "orders")
            headrace.admin.subscribers.publish("shop", "orders", GROUP, cut, generation=0)
        shown = _lag(run)
        assert (shown["source"], shown["lagBytes"]) == ("published", 0 if published else 110)
        assert (shown["lagEvents"], shown["segments"]) == (None, None)
    with pytest.raises(NotFoundError):
        headrace.reader_group("shop", "billing", initialize=False)


def test_watching_sees_the_first_reader_join(run: Run, headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(_: float) -> None:
        with headrace.reader_group("shop", "billing") as group, group.reader() as reader:
            _read(reader, 10)

    monkeypatch.setattr("headrace.cli.watching.time.sleep", meanwhile)
    first, second = map(json.loads, run("lag", GROUP, "--times", "2", "--json").out.splitlines())
    assert (first["source"], first["lagBytes"]) == ("published", 110)
    assert (second["source"], second["lagBytes"], second["lagEvents"]) == ("readers", 0, 0)


@pytest.mark.parametrize(("to", "first"), [("start", 0), ("checkpoint", 10), ("tail", 14)])
def test_reset_moves_readers_that_are_open(run: Run, headrace: Headrace, to: str, first: int) -> None:
    with headrace.reader_group("shop", "billing") as group, group.reader() as reader:
        _read(reader, 10)
        _checkpoint(group, reader)
        _write(headrace, range(10, 14))
        _read(reader, 4)
        ran = run("reset", GROUP, *([] if to == "start" else ["--to", to]), "--json")
        assert (ran.code, ran.document["generation"]) == (0, 1)
        _write(headrace, range(14, 15))
        assert _read(reader, 15 - first) == list(range(first, 15))


def _checkpoint(group: ReaderGroup, reader: GroupReader) -> None:
    """Makes a checkpoint while the only reader reads nothing new."""
    with pytest.raises(UnavailableError):
        group.checkpoint("c1", timeout_s=0)
    reader.read_batch(timeout_s=0)


@pytest.mark.parametrize("arguments", [("--record-only",), ()])
def test_a_reset_of_the_record_moves_no_reader(run: Run, headrace: Headrace, arguments: tuple[str, ...]) -> None:
    """The HTTP call is all there is for a group that no reader has joined."""
    if not arguments:
        assert run("reset", GROUP, "--json").document["generation"] == 1
        with pytest.raises(NotFoundError):
            headrace.reader_group("shop", "billing", initialize=False)
        return
    with headrace.reader_group("shop", "billing") as group, group.reader() as reader:
        _read(reader, 10)
        assert run("reset", GROUP, *arguments, "--json").document["generation"] == 1
        _write(headrace, range(10, 12))
        assert _read(reader, 2) == [10, 11]
        with pytest.raises(IllegalStateError) as refused:
            group.publish([headrace.admin.stream_cut("shop", "orders")])
        assert refused.value.specific_code == "generation_mismatch"
        group.reset("latest")
        group.publish([headrace.admin.stream_cut("shop", "orders")])


def test_resets_that_are_refused(run: Run) -> None:
    assert run("reset", GROUP, "--record-only", "--to", "head").code == 1
    elsewhere = run("reset", GROUP, "--to", "elsewhere")
    assert elsewhere.code == 2
    assert "is not start, checkpoint, earliest, latest, a time" in " ".join(elsewhere.err.split())
    assert run("reset", GROUP, "--no-wait").code == 1
    assert "no reader has joined it" in run("reset", GROUP, "--to", "checkpoint").err
    assert run("reset", "shop/none").code == 3

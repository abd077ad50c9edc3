"""`headrace stream describe`, `headrace stream scale --segments`, `headrace top`, `headrace group lag`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import stream_describe
from headrace.cli.parameters import ScopedName
from headrace.cli.stream_describe import BAR_WIDTH, key_space_bar
from headrace.client import connect
from headrace.model.segments import KeyRange, equal_ranges


@pytest.fixture
def busy(stream: str, api: ApiInMemory, ok: Show, monkeypatch: pytest.MonkeyPatch) -> str:
    """The stream s/t, which gets 3,000 bytes while a command sleeps."""
    _replace_sleep(monkeypatch, lambda: api.segment_stores.extend("s/t/0.#epoch.0", 3_000))
    return stream


def _replace_sleep(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Has the command do something instead of sleeping. A thread that another test has left still sleeps."""
    own, sleep = threading.get_ident(), time.sleep
    monkeypatch.setattr("time.sleep", lambda seconds: change() if threading.get_ident() == own else sleep(seconds))


@pytest.mark.parametrize(("count", "kept"), [(1, []), (3, []), (4, []), (2, [0, 1])])
def test_a_stream_is_scaled_evenly(stream: str, as_json: ReadJson, count: int, kept: list[int]):
    as_json("stream", "update", stream, "--segments", "1")
    done = as_json("stream", "scale", stream, "--segments", str(count))
    assert done["status"] == "SUCCESS"
    segments = as_json("segment", "list", stream)["segments"]
    assert [(segment["low"], segment["high"]) for segment in segments] == [
        (key_range.low, key_range.high) for key_range in equal_ranges(count)
    ]
    assert [segment["segment"] for segment in segments if segment["segment"] < 2] == kept
    assert done["sealedSegments"] == ([] if kept else [0, 1])


def test_scale_says_what_it_replaces(stream: str, ok: Show):
    assert ok("stream", "scale", stream, "--segments", "2") == "stream s/t has 2 equal segments already\n"
    ok("stream", "scale", stream, "--seal", "0@0", "--range", "0:0.25,0.25:0.5")
    assert ok("stream", "scale", stream, "--segments", "4", "--dry-run").splitlines() == [
        "STEP    SEGMENT  FROM KEY  TO KEY",
        "seal    1@0           0.5     1.0",
        "create  -             0.5    0.75",
        "create  -            0.75     1.0",
    ]
    assert ok("stream", "scale", stream, "--segments", "4") == (
        "scale to epoch 2: success: segments 4@2, 5@2, which replace 1@0; 2 segments kept\n"
    )


def test_another_scale_in_between_is_planned_again(stream: str, api: ApiInMemory, as_json: ReadJson):
    honest = api.respond
    rivals = [1]

    def respond(request: Any) -> Any:
        if request.method == "POST" and request.url.path.endswith("/scale") and rivals:
            rivals.pop()
            with connect("http://controller", transport=api.transport()) as client:
                client.admin.scale_stream("s", "t", seal=[0], ranges=[(0, 0.25), (0.25, 0.5)])
        return honest(request)

    api.respond = respond
    assert as_json("stream", "scale", stream, "--segments", "4")["sealedSegments"] == [1]
    assert as_json("stream", "get", stream)["segments"] == 4


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--segments", "0"),
        ("--segments", "2", "--seal", "0"),
        ("--seal", "0"),
        ("--seal", "0", "--range", "0:1", "--dry-run"),
    ],
)
def test_the_two_forms_of_a_scale_exclude_each_other(stream: str, run: Run, options: tuple[str, ...]):
    assert run("stream", "scale", stream, *options).code == 2


def test_describe_is_one_page(busy: str, api: ApiInMemory, ok: Show, as_json: ReadJson):
    ok("subscriber", "register", busy, "billing")
    with connect("http://controller", transport=api.transport()) as client:
        transaction = client.admin.transactions.create("s", "t").transaction
    clock = iter((0.0, 2.0))
    stream_describe.RateSampler.__init__.__defaults__ = (lambda: next(clock),)
    shown = ok("stream", "describe", busy)
    assert shown.splitlines() == [
        "stream     s/t",
        "state      active",
        "scaling    not automatic, at least 2 segments",
        "rate       1.5 kB/s",
        "tags       -",
        "created    2023-11-14 22:13:20Z",
        "retention  everything is kept",
        "kept       3.0 kB, written after 2023-11-14 22:13:20Z",
        "",
        "SEGMENT  KEY SPACE                         SHARE   RATE",
        "0@0      ################................  50.0 %  1.5 kB/s",
        "1@0      ................################  50.0 %  0 B/s",
        "",
        "SUBSCRIBERS",
        "SUBSCRIBER  LAG     UPDATED",
        "billing     3.0 kB  2023-11-14 22:13:20Z",
        "",
        "OPEN TRANSACTIONS",
        "TRANSACTION                       STATE  CREATED               LEASE ENDS IN",
        f"{transaction}  open   2023-11-14 22:13:20Z  1 min",
    ]
    document = as_json("stream", "describe", busy, "--interval", "0")
    assert (document["bytesPerS"], document["subscribers"][0]["lagBytes"]) == (None, 3_000)
    assert [listed["transaction"] for listed in document["openTransactions"]] == [transaction]


@pytest.fixture(autouse=True)
def _real_time() -> Any:
    before = stream_describe.RateSampler.__init__.__defaults__
    yield
    stream_describe.RateSampler.__init__.__defaults__ = before


def test_a_sealed_stream_is_described_without_rates(busy: str, ok: Show, as_json: ReadJson):
    ok("stream", "seal", busy)
    assert as_json("stream", "describe", busy)["bytesPerS"] is None


def test_rates_survive_a_scale_and_a_new_stream_of_the_name(stream: str, api: ApiInMemory, ok: Show):
    now = [0.0]
    with connect("http://controller", transport=api.transport()) as client:
        sampler = stream_describe.RateSampler(client.admin, lambda: now[0])
        name = ScopedName("s", "t")
        assert sampler.sample(name) is None
        api.segment_stores.extend("s/t/0.#epoch.0", 100)
        ok("stream", "scale", stream, "--segments", "4")
        api.segment_stores.extend("s/t/2.#epoch.1", 50)
        now[0] = 10.0
        growth = sampler.sample(name)
        assert growth is not None
        assert (growth.total_bytes_per_s, growth.bytes_per_s[0], len(growth.tail.positions)) == (15.0, 10.0, 4)
        ok("stream", "seal", stream)
        ok("stream", "delete", stream)
        ok("stream", "create", stream)
        assert sampler.sample(name) is None
        now[0] = 11.0
        again = sampler.sample(name)
        assert again is not None
        assert again.total_bytes_per_s == 0.0


def test_top_shows_the_fastest_streams_first(busy: str, ok: Show):
    ok("stream", "create", "s/idle")
    lines = ok("top", "--times", "2", "--interval", "0.1").splitlines()
    assert [line.split()[0] for line in lines if line] == ["STREAM", "s/idle", "s/t", "STREAM", "s/t", "s/idle"]
    tables = [json.loads(line) for line in ok("top", "s", "--times", "1", "--count", "1", "--json").splitlines()]
    assert [(stream["scope"], stream["stream"], stream["segments"]) for stream in tables[0]["streams"]] == [
        ("s", "idle", 2)
    ]


@pytest.mark.parametrize("arguments", [("--interval", "0"), ("--times", "0"), ("--interval", "x")])
def test_top_refuses_a_busy_loop(run: Run, arguments: tuple[str, ...]):
    assert run("top", *arguments).code == 2


def test_published_lag_of_a_group(busy: str, api: ApiInMemory, ok: Show, as_json: ReadJson):
    """There are no segment stores that could tell the lag of the group's readers."""
    lag = ("group", "lag", "s/g", "--retry-s", "0")
    ok("group", "create", "s/g", "--stream", busy, "--retention", "manual")
    api.segment_stores.extend("s/t/1.#epoch.0", 1_500)
    assert ok(*lag).splitlines() == [
        "note  the segment stores cannot be reached: these are published positions",
        "",
        "STREAM  LAG     POSITION OF",
        "s/t     1.5 kB  2023-11-14 22:13:20Z",
    ]
    shown = as_json(*lag)
    assert (shown["source"], shown["lagBytes"], shown["lagEvents"]) == ("published", 1_500, None)
    first, second = [json.loads(line) for line in ok(*lag, "--times", "2", "--json").splitlines()]
    assert (first["lagBytes"], second["lagBytes"]) == (1_500, 4_500)
    watched = ok(*lag, "--watch", "--times", "2")
    assert watched.splitlines()[7].split() == ["STREAM", "LAG", "POSITION", "OF", "CHANGE", "EMPTY", "IN"]


def test_a_group_without_positions_has_no_lag(stream: str, ok: Show, as_json: ReadJson):
    ok("group", "create", "s/g", "--stream", stream)
    assert as_json("group", "lag", "s/g", "--retry-s", "0")["lagBytes"] is None
    shown = ok("group", "lag", "s/g", "--retry-s", "0")
    assert "s/g publishes no positions: its retention is none" in shown
    assert "not known" in shown


def test_watching_ends_with_ctrl_c(busy: str, run: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    _replace_sleep(monkeypatch, interrupt)
    ran = run("top")
    assert (ran.code, ran.err) == (130, "")
    assert ran.out.startswith("STREAM")


@given(bounds=st.sets(st.floats(0, 1), min_size=2, max_size=2).map(sorted))
def test_a_bar_has_its_width_and_shows_every_segment(bounds: list[float]):
    bar = key_space_bar(KeyRange(*bounds), used="#", unused=".")
    assert len(bar) == BAR_WIDTH
    assert "#" in bar
    assert bar.strip(".") == "#" * bar.count("#")


@given(count=st.integers(1, BAR_WIDTH))
def test_bars_of_equal_segments_cover_the_key_space_once(count: int):
    bars = [key_space_bar(key_range, used="#", unused=".") for key_range in equal_ranges(count)]
    assert all(column.count("#") == 1 for column in zip(*bars, strict=True))


def test_a_long_list_has_totals(stream: str, ok: Show, as_json: ReadJson, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_describe, "INTERVAL_S_DEFAULT", 0.0)
    (found,) = as_json("stream", "list", "s", "--long")["streams"]
    assert (found["state"], found["segments"], found["bytesRetained"], found["bytesPerS"]) == ("ACTIVE", 2, 0, 0.0)
    assert ok("stream", "list", "s", "-l").splitlines()[1].split() == ["s/t", "active", "2", "0", "B", "0", "B/s", "-"]
    ok("stream", "seal", stream)
    (found,) = as_json("stream", "list", "s", "-l")["streams"]
    assert (found["state"], found["bytesPerS"]) == ("SEALED", None)

"""Readers that order the segments of a stream by the time at which their events were stored."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest
from real_cluster import RealCluster, client_of, connected_to, serve_functions
from scripted_cluster import Cluster

from functions import wiring
from headrace.adapters.system_clock import SystemClock
from headrace.cli import main, session
from headrace.client import (
    EventReader,
    EventWriter,
    GroupReaderOptions,
    Headrace,
    InvalidRequestError,
    KeyRange,
    ReaderOptions,
    ReadOrder,
    ScalingPolicy,
    StreamCut,
    WriterOptions,
)
from headrace.segmentstore.tiering.stored_times import BYTES_PER_TIME_POINT_MIN

KEYS = [f"key-{number}" for number in range(6)]
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "using" / "time-order.md"
BY_TIME = ReaderOptions(order=ReadOrder.TIME)


class SteppedClock(SystemClock):
    """The wall time goes on only when a test lets it."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall_ms


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def stepped(clock: SteppedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealCluster]:
    """A cluster whose stores see the stepped clock."""
    cluster = RealCluster(clock)
    serve_functions(cluster, monkeypatch)
    yield cluster
    cluster.close()
    wiring.forget_services()


@pytest.fixture
def headrace(stepped: RealCluster) -> Iterator[Headrace]:
    """A client with the stream `shop/orders` of three segments."""
    with client_of(stepped) as client:
        client.admin.create_scope("shop")
        client.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(3))
        yield client


def _write(
    writer: EventWriter, clock: SteppedClock, steps_ms: list[int], keys: list[str], padding: bytes = b""
) -> list[bytes]:
    """Writes an event after each step of the clock. An event says when it was stored."""
    written = []
    for step_ms, key in zip(steps_ms, keys, strict=True):
        clock.wall_ms += step_ms
        written.append(b"%d %s %s" % (clock.wall_ms, key.encode(), padding))
        writer.write(written[-1], key)
        writer.flush()
    return written


def _times_ms(events: list[bytes]) -> list[int]:
    return [int(event.split()[0]) for event in events]


def _keys(count: int, seed: int = 0) -> list[str]:
    dice = random.Random(seed)
    return [dice.choice(KEYS) for _ in range(count)]


def test_history_comes_in_the_order_in_which_it_was_stored(headrace: Headrace, clock: SteppedClock) -> None:
    """All events of a segment fit in one read, so that its bytes are cut at the times of the others."""
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [10_000] * 60, _keys(60))
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", end=tail, options=BY_TIME) as reader:
        reads = list(reader)
        assert reader.ended
        assert reader.position == tail
    assert [read.event for read in reads] == written
    assert len({read.segment_id for read in reads}) == 3


@pytest.mark.parametrize("resolution_ms", [0, 5, 40, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_disorder_is_shorter_than_the_resolution(
    headrace: Headrace, clock: SteppedClock, seed: int, resolution_ms: int
) -> None:
    dice = random.Random(seed)
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [dice.choice([1, 3, 20, 500]) for _ in range(120)], _keys(120, seed))
    tail = headrace.admin.stream_cut("shop", "orders")
    options = ReaderOptions(order=ReadOrder.TIME, time_resolution_s=resolution_ms / 1000)
    with headrace.reader("shop", "orders", end=tail, options=options) as reader:
        events = [read.event for read in reader]
    assert sorted(events, key=written.index) == written
    newest = itertools.accumulate(_times_ms(events), max)
    assert all(
        latest - time_ms < max(1, resolution_ms) for latest, time_ms in zip(newest, _times_ms(events), strict=True)
    )


def _next(reader: Iterator[object], count: int) -> list[bytes]:
    return [read.event for read in itertools.islice(reader, count)]  # type: ignore[attr-defined]


def test_quiet_segments_do_not_stop_a_reader_at_the_tail(headrace: Headrace, clock: SteppedClock) -> None:
    """Only one segment gets events. The clock does not go on while the reader waits."""
    with (
        headrace.reader("shop", "orders", start="latest", options=BY_TIME) as reader,
        headrace.writer("shop", "orders") as writer,
    ):
        events = iter(reader)
        for _ in range(5):
            written = _write(writer, clock, [50, 0, 0], [KEYS[0]] * 3)
            assert _next(events, 3) == written


def test_events_at_the_tail_of_all_segments_come_in_order(headrace: Headrace, clock: SteppedClock) -> None:
    with (
        headrace.reader("shop", "orders", start="latest", options=BY_TIME) as reader,
        headrace.writer("shop", "orders") as writer,
    ):
        events = iter(reader)
        for seed in range(4):
            written = _write(writer, clock, [200] * 20, _keys(20, seed))
            assert _next(events, 20) == written


def test_order_is_kept_over_splits_and_merges(headrace: Headrace, clock: SteppedClock) -> None:
    admin = headrace.admin
    written: list[bytes] = []
    with headrace.writer("shop", "orders") as writer:
        written += _write(writer, clock, [300] * 30, _keys(30, 1))
        first, *_ = admin.segments("shop", "orders")
        middle = (first.key_range.low + first.key_range.high) / 2
        halves = [KeyRange(first.key_range.low, middle), KeyRange(middle, first.key_range.high)]
        admin.scale_stream("shop", "orders", seal=[first.segment_id], ranges=halves)
        written += _write(writer, clock, [300] * 30, _keys(30, 2))
        left, right, *_ = admin.segments("shop", "orders")
        admin.scale_stream("shop", "orders", seal=[left.segment_id, right.segment_id], ranges=[first.key_range])
        written += _write(writer, clock, [300] * 30, _keys(30, 3))
    admin.seal_stream("shop", "orders")
    with headrace.reader("shop", "orders", options=BY_TIME) as reader:
        assert [read.event for read in reader] == written
        assert reader.ended


def test_going_on_at_the_position(headrace: Headrace, clock: SteppedClock) -> None:
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [500] * 50, _keys(50))
    headrace.admin.seal_stream("shop", "orders")
    events: list[bytes] = []
    start: StreamCut | Literal["earliest"] = "earliest"
    while len(events) < len(written):
        with headrace.reader("shop", "orders", start=start, options=BY_TIME) as reader:
            events += _next(iter(reader), 7)
            start = reader.position
    assert events == written


@pytest.mark.parametrize("tiered", [False, True])
def test_start_inside_an_append(headrace: Headrace, stepped: RealCluster, clock: SteppedClock, tiered: bool) -> None:
    """The store finds starts of appends: the next one is later than events of the other segments."""
    padding = b"." * BYTES_PER_TIME_POINT_MIN
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [5_000] * 2, KEYS[:1] * 2, padding)
        clock.wall_ms += 5_000
        together = [b"%d %d %s" % (clock.wall_ms, number, padding) for number in range(10)]
        writer.write_batch(together, KEYS[0])
        writer.flush()
        written += together + _write(writer, clock, [5_000] * 12, [*KEYS[::-1], *KEYS], padding)
    if tiered:
        stepped.stop_store()
        stepped.start_store()
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", end=tail, options=BY_TIME) as reader:
        first = _next(iter(reader), 7)
        position = reader.position
    assert first == written[:7]
    with headrace.reader("shop", "orders", start=position, end=tail, options=BY_TIME) as reader:
        assert [read.event for read in reader] == written[7:]


def test_a_store_that_starts_again_changes_nothing(
    headrace: Headrace, stepped: RealCluster, clock: SteppedClock
) -> None:
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [200] * 40, _keys(40))
        with headrace.reader("shop", "orders", options=BY_TIME) as reader:
            events = iter(reader)
            found = _next(events, 10)
            stepped.kill_store()
            stepped.start_store()
            found += _next(events, 20)
            stepped.drop_connections()
            written += _write(writer, clock, [200] * 10, _keys(10, 1))
            found += _next(events, 20)
    assert found == written


def test_tiered_events_come_in_order(headrace: Headrace, stepped: RealCluster, clock: SteppedClock) -> None:
    """A read from tier 2 has only the time of its run, which begins with the segment here."""
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [5_000] * 45, _keys(45), b"." * BYTES_PER_TIME_POINT_MIN)
        stepped.stop_store()
        assert stepped.chunks._objects
        stepped.start_store()
        written += _write(writer, clock, [5_000] * 15, _keys(15, 1))
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", end=tail, options=BY_TIME) as reader:
        first = _next(iter(reader), 20)
        position = reader.position
    assert first == written[:20]
    with headrace.reader("shop", "orders", start=position, end=tail, options=BY_TIME) as reader:
        assert [read.event for read in reader] == written[20:]


def test_what_was_truncated_is_skipped_and_not_waited_for(headrace: Headrace, clock: SteppedClock) -> None:
    with headrace.writer("shop", "orders") as writer:
        start = headrace.admin.stream_cut("shop", "orders")
        _write(writer, clock, [100] * 20, _keys(20))
        headrace.admin.truncate_stream("shop", "orders", headrace.admin.stream_cut("shop", "orders"))
        written = _write(writer, clock, [100] * 3, [KEYS[0]] * 3)
        options = ReaderOptions(order=ReadOrder.TIME, on_truncation="skip")
        with headrace.reader("shop", "orders", start=start, options=options) as reader:
            assert _next(iter(reader), 3) == written


def test_arrow_batches_come_in_order(headrace: Headrace, clock: SteppedClock) -> None:
    pytest.importorskip("pyarrow")
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [700] * 40, _keys(40))
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", end=tail, options=BY_TIME) as reader:
        batches = list(reader.arrow_batches())
        assert reader.position == tail
    assert [event for batch in batches for event in batch["event"].to_pylist()] == written


def test_batches_begin_in_order(headrace: Headrace, clock: SteppedClock) -> None:
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [30] * 60, _keys(60))
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", end=tail, options=BY_TIME) as reader:
        batches = _batches(reader)
    firsts = _times_ms([batch[0] for batch in batches])
    assert firsts == sorted(firsts)
    assert sorted(itertools.chain(*batches), key=written.index) == written
    assert any(len(batch) > 1 for batch in batches)


def _batches(reader: EventReader) -> list[list[bytes]]:
    found = []
    while (batch := reader.read_batch()) is not None:
        found.append(batch.events)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_stores_without_times_lose_and_repeat_nothing(cluster: Cluster, seed: int) -> None:
    """The scripted store tells no times, and that an append begins behind each byte."""
    dice = random.Random(seed)
    with cluster.client() as headrace:
        with headrace.writer("s", "t", WriterOptions(block_bytes=300, buffer_bytes=50_000)) as writer:
            for number in range(60):
                for key in KEYS:
                    writer.write(b"%s:%d" % (key.encode(), number), key)
                if number == 20:
                    cluster.scale([0], [(0.0, 0.25), (0.25, 0.5)])
                if number == 40:
                    cluster.scale(
                        [identifier for identifier in cluster.segments if identifier >> 32 == 1] + [1],
                        [(0.0, 0.4), (0.4, 1.0)],
                    )
        cluster.seal_stream()
        by_key: dict[str, list[int]] = defaultdict(list)
        with headrace.reader("s", "t", options=BY_TIME) as reader:
            for read in reader:
                key, number_text = read.event.decode().split(":")
                by_key[key].append(int(number_text))
                if dice.random() < 0.02:
                    cluster.drop_connections()
    assert by_key == {key: list(range(60)) for key in KEYS}


def test_example_of_the_guide(
    headrace: Headrace, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [100] * 30, _keys(30))
    monkeypatch.setattr("headrace.client.connect", lambda: nullcontext(headrace))
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    capsys.readouterr()
    exec(compile(example, str(GUIDE), "exec"), {})  # noqa: S102 - text of this project
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("b'")]
    assert printed == [repr(event) for event in written]


def test_the_command_line_reads_in_order(
    headrace: Headrace,
    stepped: RealCluster,
    clock: SteppedClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with headrace.writer("shop", "orders") as writer:
        written = _write(writer, clock, [300] * 30, _keys(30))
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(stepped))
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    capsys.readouterr()
    assert main(["event", "read", "shop/orders", "--order", "time"]) == 0
    assert capsys.readouterr().out.splitlines() == [event.decode() for event in written]


@pytest.mark.parametrize("resolution_s", [-0.1, 3601, float("nan")])
def test_resolutions_out_of_range_are_refused(resolution_s: float) -> None:
    with pytest.raises(InvalidRequestError):
        ReaderOptions(order=ReadOrder.TIME, time_resolution_s=resolution_s)


def test_readers_of_groups_have_no_order_in_time() -> None:
    with pytest.raises(InvalidRequestError):
        GroupReaderOptions(reading=BY_TIME)

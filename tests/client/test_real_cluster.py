"""The client against everything real but AWS: handlers, controller, workflows, segment store engine.

Only the adapters are those in memory. Segment stores are stopped without warning and recovered from their journal,
connections are dropped, streams are scaled, all while a writer writes.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pytest
from real_cluster import RealCluster

from headrace.client import (
    Ack,
    AlreadyExistsError,
    ConflictError,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    KeyRange,
    NotFoundError,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    SealedError,
    StreamCut,
    UnavailableError,
    WriterOptions,
    large_events,
)
from headrace.client.reading.segment_reads import SegmentReads
from headrace.client.writing import event_blocks, segment_appender

SMALL_BLOCKS = WriterOptions(block_bytes=2_000, buffer_bytes=200_000)


def _numbers(events: list[bytes]) -> dict[str, list[int]]:
    numbers_by_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        numbers_by_key[key].append(int(number))
    return dict(numbers_by_key)


def _halves(headrace: Headrace, stream: str) -> tuple[list[int], list[tuple[float, float]]]:
    segments = headrace.admin.segments("shop", stream)
    ranges = []
    for segment in segments:
        middle = (segment.key_range.low + segment.key_range.high) / 2
        ranges += [(segment.key_range.low, middle), (middle, segment.key_range.high)]
    return [segment.segment_id for segment in segments], ranges


def test_the_life_of_a_stream(headrace: Headrace) -> None:
    admin = headrace.admin
    policy = ScalingPolicy.by_event_rate(100, 2, 2)
    keep = RetentionPolicy(RetentionType.LIMITED_DAYS, 7)
    created = admin.create_stream("shop", "orders", scaling=policy, retention=keep, tags=["b", "a"])
    assert (created.state, created.epoch, created.segments) == ("ACTIVE", 0, 2)
    assert (created.scaling, created.retention, created.tags) == (policy, keep, ("a", "b"))
    with pytest.raises(AlreadyExistsError):
        admin.create_stream("shop", "orders")
    assert admin.create_stream("shop", "orders", exist_ok=True) == created
    assert admin.list_scopes() == ["shop"]
    assert [summary.stream for summary in admin.list_streams("shop", tag="a")] == ["orders"]
    assert admin.list_streams("shop", tag="c") == []

    with headrace.writer("shop", "orders") as writer:
        for number in range(1_000):
            writer.write(b"k:%d" % number, "k")
    segments, ranges = _halves(headrace, "orders")
    progress = admin.scale_stream("shop", "orders", seal=segments, ranges=ranges)
    assert progress.status == "SUCCESS"
    assert [segment.key_range for segment in admin.segments("shop", "orders")] == [
        KeyRange(*bounds) for bounds in ranges
    ]
    assert [segment.segment_id for segment in admin.segments("shop", "orders", epoch=0)] == segments
    following = admin.successors("shop", "orders", segments[0])
    assert [segment.predecessors for segment in following.segments] == [(segments[0],)] * 2
    assert admin.predecessors("shop", "orders", following.segments[0].segment_id)[0].segment_id == segments[0]

    with pytest.raises(IllegalStateError) as not_sealed:
        admin.delete_stream("shop", "orders")
    assert not_sealed.value.specific_code == "stream_not_sealed"
    with headrace.writer("shop", "orders") as writer:
        writer.write(b"k:1000", "k")
    admin.seal_stream("shop", "orders")
    with pytest.raises(SealedError):
        admin.seal_stream("shop", "orders")
    with pytest.raises(SealedError):
        headrace.writer("shop", "orders")
    with headrace.reader("shop", "orders") as reader:
        assert _numbers([read.event for read in reader]) == {"k": list(range(1_001))}
    admin.delete_stream("shop", "orders")
    with pytest.raises(NotFoundError):
        admin.get_stream("shop", "orders")
    admin.delete_scope("shop")
    assert not admin.scope_exists("shop")


def test_requests_that_are_refused(headrace: Headrace) -> None:
    admin = headrace.admin
    admin.create_scope("shop", exist_ok=True)
    with pytest.raises(AlreadyExistsError):
        admin.create_scope("shop")
    with pytest.raises(NotFoundError):
        admin.create_stream("nowhere", "orders")
    admin.create_stream("shop", "orders")
    with pytest.raises(InvalidRequestError) as hole:
        admin.scale_stream("shop", "orders", seal=[0], ranges=[(0.0, 0.25)])
    assert hole.value.specific_code == "invalid_key_ranges"
    with pytest.raises(IllegalStateError) as busy:
        admin.delete_scope("shop")
    assert busy.value.specific_code == "scope_not_empty"
    for name in ("", "a/b", "x" * 300):
        with pytest.raises(InvalidRequestError) as bad:
            admin.get_stream("shop", name)
        assert bad.value.specific_code == "invalid_name"
    with pytest.raises(NotFoundError):
        headrace.writer("shop", "missing")


def test_sealing_a_stream_under_a_writer_tells_what_was_stored(headrace: Headrace) -> None:
    headrace.admin.create_stream("shop", "orders")
    writer = headrace.writer("shop", "orders", SMALL_BLOCKS)
    sealed = threading.Event()

    def seal() -> None:
        headrace.admin.seal_stream("shop", "orders")
        sealed.set()

    thread = threading.Thread(target=seal)
    acks: list[tuple[int, Ack]] = []

    def write_for_ever() -> None:
        for number in itertools.count():
            acks.append((number, writer.write(b"k:%d" % number, "k")))
            if number == 5_000:
                writer.flush()
                thread.start()

    with pytest.raises(SealedError):
        write_for_ever()
    thread.join()
    assert sealed.is_set()
    for _, ack in acks:
        if not ack.done:
            with pytest.raises(SealedError):
                ack.result(timeout_s=30)
    acknowledged = [number for number, ack in acks if ack.exception() is None]
    writer.close()
    with headrace.reader("shop", "orders") as reader:
        assert _numbers([read.event for read in reader]) == {"k": acknowledged}


@pytest.mark.parametrize("seed", range(8))
def test_exactly_once_in_order_over_scales_drops_and_kills(real: RealCluster, headrace: Headrace, seed: int) -> None:
    dice = random.Random(seed)
    keys, per_key = 30, 600
    headrace.admin.create_stream("shop", "orders")
    scaling: list[threading.Thread] = []
    with headrace.writer("shop", "orders", SMALL_BLOCKS) as writer:
        for number in range(per_key):
            batch = [f"k{key}:{number}".encode() for key in range(keys)]
            writer.write_batch(batch, [f"k{key}" for key in range(keys)])
            trouble = dice.random()
            if trouble < 0.03:
                real.drop_connections()
            elif trouble < 0.04:
                real.kill_store()
                real.start_store()
            if number in (100, 350):
                for thread in scaling:
                    thread.join()
                segments, ranges = _halves(headrace, "orders")
                if number == 350:  # merge everything into three that cut across the old ones
                    ranges = [(0.0, 0.3), (0.3, 0.8), (0.8, 1.0)]
                scaling.append(threading.Thread(target=_scale, args=(headrace, segments, ranges)))
                scaling[-1].start()
        writer.flush()
        assert writer.acknowledged_events == keys * per_key
    for thread in scaling:
        thread.join()
    assert headrace.admin.get_stream("shop", "orders").epoch == 2
    expected = {f"k{key}": list(range(per_key)) for key in range(keys)}
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", "earliest", tail) as reader:
        assert _numbers([read.event for read in reader]) == expected
        assert reader.position == tail
    assert _numbers(_read_in_pieces(headrace, dice, tail)) == expected


def _scale(headrace: Headrace, segments: list[int], ranges: list[tuple[float, float]]) -> None:
    headrace.admin.scale_stream("shop", "orders", seal=segments, ranges=ranges)


def _read_in_pieces(headrace: Headrace, dice: random.Random, tail: StreamCut) -> list[bytes]:
    """Readers that stop somewhere, each going on where the last one stopped."""
    events: list[bytes] = []
    start: StreamCut | Literal["earliest"] = "earliest"
    while True:
        with headrace.reader("shop", "orders", start, tail) as reader:
            for _, read in zip(range(dice.randrange(1, 5_000)), reader, strict=False):
                events.append(read.event)
            start = reader.position
            if reader.ended:
                return events


def test_a_reader_from_a_time_on_gets_what_was_written_since(real: RealCluster, headrace: Headrace) -> None:
    """Over a scale, on both sides of it, and after a crash; the clock goes on between any two writes."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))

    def moment() -> datetime:
        after_ms = real.clock.now_ms() + 1
        while real.clock.now_ms() <= after_ms:
            pass
        return datetime.fromtimestamp(after_ms / 1000, UTC)

    moments = []
    written: list[bytes] = []
    for stage in range(5):
        moments.append((moment(), len(written)))
        if stage == 2:
            segments, ranges = _halves(headrace, "orders")
            headrace.admin.scale_stream("shop", "orders", seal=segments, ranges=ranges)
            moments.append((moment(), len(written)))
        with headrace.writer("shop", "orders") as writer:
            events = [b"%d of %d" % (number, stage) for number in range(20 if stage < 4 else 1)]
            for event in events:
                writer.write(event, event.decode())
                writer.flush()
        written += events
    moments.append((moment(), len(written)))
    real.kill_store()
    real.start_store()
    tail = headrace.admin.stream_cut("shop", "orders")
    for time, count in moments:
        start = headrace.stream_cut_at("shop", "orders", time)
        with headrace.reader("shop", "orders", start=start, end=tail) as reader:
            assert sorted(read.event for read in reader) == sorted(written[count:])
    assert headrace.stream_cut_at("shop", "orders", moments[-1][0]) == tail
    assert headrace.stream_cut_at("shop", "orders", datetime(1960, 1, 1, tzinfo=UTC)) == headrace.admin.stream_cut(
        "shop", "orders", at="earliest"
    )
    with pytest.raises(InvalidRequestError, match="no time zone"):
        headrace.stream_cut_at("shop", "orders", moments[0][0].replace(tzinfo=None))
    with pytest.raises(NotFoundError):
        headrace.stream_cut_at("shop", "missing", moments[0][0])


def test_a_time_within_a_millisecond_misses_no_event(real: RealCluster, headrace: Headrace) -> None:
    """The clocks of stores count milliseconds. An event of the same millisecond may be newer than the time."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as writer:
        for _ in range(5):
            moment = datetime.now(UTC)
            writer.write(b"an order").result()
            tail = headrace.admin.stream_cut("shop", "orders")
            assert headrace.stream_cut_at("shop", "orders", moment) != tail


def test_bytes_of_segments_over_a_restart(real: RealCluster, headrace: Headrace) -> None:
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders", SMALL_BLOCKS) as writer:
        writer.write_batch([b"%d" % number * 10 for number in range(20_000)], "k")
    between = headrace.admin.segments_between("shop", "orders")
    (part,) = between.ranges
    read = b""
    with SegmentReads(headrace.admin, "shop", "orders") as reads:
        for window in reads.read(part.segment_id, part.start_offset, part.end_offset):
            if not read:
                real.kill_store()
                real.start_store()
            read += window
        assert len(read) == part.end_offset


def test_writer_of_bytes_accepts_integers_of_numpy(headrace: Headrace) -> None:
    headrace.admin.create_stream("shop", "video", scaling=ScalingPolicy.fixed(1))
    stream = headrace.byte_stream("shop", "video")
    for offset in (np.int64(0), np.int64(3)):
        with stream.writer(expected_offset=offset, buffer_bytes=np.int64(1_000)) as writer:  # type: ignore[arg-type]
            writer.write(b"abc")
    with stream.reader() as reader:
        assert reader.available() == 6


CHUNK_BYTES = 1_000
LARGE = SMALL_BLOCKS.block_bytes * 2
LARGE_STEPS = ["CreateTransientSegment", "SetupAppend", *["ConditionalBlockEnd"] * 5, "MergeSegments"]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of LARGE bytes are large already, and go in five chunks."""
    monkeypatch.setattr(event_blocks, "EVENT_BYTES_MAX", SMALL_BLOCKS.block_bytes)
    monkeypatch.setattr(large_events, "CHUNK_BYTES", CHUNK_BYTES)


def _mixed(count: int) -> list[bytes]:
    """Events `k:number`, every third of which is large."""
    return [b"k:%d" % number + b" " * (LARGE - 3 if number % 3 == 1 else 0) for number in range(count)]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("trouble", ["lost before", "sent and lost", "lost after", "killed after"])
@pytest.mark.parametrize("step", range(len(LARGE_STEPS)))
def test_interrupted_large_event_is_stored_once(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, step: int, trouble: str
) -> None:
    steps: list[str] = []
    ask = large_events._LargeAppend._ask

    async def break_off(self: Any, command: Any, expected: Any) -> Any:
        steps.append(type(command).__name__)
        if len(steps) != step + 1:
            return await ask(self, command, expected)
        if trouble == "lost before":
            self._flow.connection.close()
        if trouble == "sent and lost":
            self._replies.ask(self._flow, command)
            self._flow.connection.close()
            raise UnavailableError("the outcome is unknown")
        reply = await ask(self, command, expected)
        if trouble == "killed after":
            real.kill_store()
            real.start_store()
        else:
            self._flow.connection.close()
        raise UnavailableError(f"the {type(reply).__name__} is lost")

    monkeypatch.setattr(large_events._LargeAppend, "_ask", break_off)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    events = _mixed(5)
    with headrace.writer("shop", "orders", SMALL_BLOCKS) as writer:
        for event in events:
            writer.write(event, "k")
        writer.flush()
    assert steps[: step + 1] == LARGE_STEPS[: step + 1]
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", "earliest", tail) as reader:
        assert [read.event for read in reader] == events


@pytest.mark.usefixtures("small_limits")
def test_an_earlier_attempt_that_comes_late_is_recognised(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    async def twice(*arguments: Any) -> None:
        await large_events.append_large(*arguments)
        with pytest.raises(ConflictError):
            await large_events.append_large(*arguments)
        raise UnavailableError("the answer to the first is lost")

    monkeypatch.setattr(segment_appender, "append_large", twice)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders", SMALL_BLOCKS) as writer:
        writer.write_batch(_mixed(6), "k")
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", "earliest", tail) as reader:
        assert [read.event for read in reader] == _mixed(6)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("seed", range(3))
def test_large_events_over_scales_drops_and_kills(real: RealCluster, headrace: Headrace, seed: int) -> None:
    dice = random.Random(seed)
    keys = [f"k{key}" for key in range(8)]
    headrace.admin.create_stream("shop", "orders")
    segments, ranges = _halves(headrace, "orders")
    scale = threading.Thread(target=_scale, args=(headrace, segments, ranges))
    with headrace.writer("shop", "orders", SMALL_BLOCKS) as writer:
        for number in range(100):
            blanks = [b" " * dice.choice((0, 0, 0, 0, LARGE, 3 * LARGE)) for _ in keys]
            events = [b"%s:%d" % (key.encode(), number) + blank for key, blank in zip(keys, blanks, strict=True)]
            dice.choice((writer.write_batch, writer.write_many))(events, keys)
            if number == 40:
                scale.start()
            trouble = dice.random()
            if trouble < 0.05:
                real.drop_connections()
            elif trouble < 0.07:
                real.kill_store()
                real.start_store()
    scale.join()
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", "earliest", tail) as reader:
        assert _numbers([read.event for read in reader]) == {key: list(range(100)) for key in keys}

"""`write_many` stores the same bytes as `write`, event by event, for any columns, blocks, slices and scales."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_cluster import Cluster

from headrace.client import AsyncHeadrace, InvalidRequestError, SealedError, WriterOptions, connect
from headrace.client.writing import column_writes
from headrace.client.writing.batch_accumulator import BatchAccumulator, too_large
from headrace.client.writing.column_writes import column_slices
from headrace.client.writing.event_blocks import SegmentQueue, Wants
from headrace.client.writing.event_writer import closed_error
from headrace.client.writing.routing_table import Route
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE
from headrace.model.segments import equal_ranges

Make = Callable[[int], Cluster]
Blocks = list[list[tuple[bytes, str | None]]]
SMALL_BLOCKS = WriterOptions(block_bytes=200, buffer_bytes=100_000)


class World:
    """An accumulator with `segments` queues that no appender empties."""

    def __init__(self, segments: int, block_bytes: int) -> None:
        self.accumulator = BatchAccumulator(block_bytes=block_bytes, buffer_bytes=1 << 40)
        self.queues = [self.queue(number) for number in range(segments)]
        ranges = equal_ranges(segments)
        self.accumulator.route(Route(key_range, queue) for key_range, queue in zip(ranges, self.queues, strict=True))

    def queue(self, number: int) -> SegmentQueue:
        return self.accumulator.new_queue(number, lambda: None)

    def split(self, number: int) -> None:
        """Replaces a segment by two new ones."""
        old, whole = self.queues[number], equal_ranges(len(self.queues))[number]
        middle = (whole.low + whole.high) / 2
        new = [self.queue(100), self.queue(101)]
        ranges = [type(whole)(whole.low, middle), type(whole)(middle, whole.high)]
        self.accumulator.reroute(old, [], zip(ranges, new, strict=True))
        self.queues += new

    def write_each(self, events: list[bytes], keys: list[str]) -> None:
        for event, key in zip(events, keys, strict=True):
            assert self.accumulator.add(event, key) is not None

    def write_many(self, events: Any, keys: Any) -> None:
        ack = self.accumulator.new_ack()
        for column_slice in column_slices(events, keys, EVENT_BYTES_MAX_LARGE, too_large):
            assert column_slice.add_to(self.accumulator, ack)
        self.accumulator.settle(ack)

    def stored(self) -> list[bytes]:
        """What would be appended to each segment."""
        return [b"".join(block.seal() for block in [*queue.ready, queue.open]) for queue in self.queues]

    def blocks(self) -> Blocks:
        return [
            list(zip(block.events(), block.event_keys(), strict=True))
            for queue in self.queues
            for block in [*queue.ready, queue.open]
        ]


one_size = st.integers(0, 40).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=60))
event_lists = one_size | st.lists(st.binary(max_size=90), max_size=60)
key_names = st.text(max_size=3) | st.sampled_from(["a", "b", "c"])


@given(event_lists, st.data(), st.integers(1, 9), st.integers(1, 400), st.integers(1, 30), st.integers(1, 300))
def test_columns_are_stored_like_single_events(
    events: list[bytes], data: st.DataObject, segments: int, block_bytes: int, slice_events: int, slice_bytes: int
) -> None:
    keys = data.draw(st.lists(key_names, min_size=len(events), max_size=len(events)))
    single, many = World(segments, block_bytes), World(segments, block_bytes)
    single.write_each(events, keys)
    cut = data.draw(st.integers(0, len(events)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_writes, "SLICE_EVENTS", slice_events)
        patch.setattr(column_writes, "SLICE_BYTES", slice_bytes)
        for part in (slice(cut), slice(cut, None)):
            many.write_many(pa.array(events[part], pa.binary()), pa.array(keys[part], pa.string()))
    assert many.stored() == single.stored()
    for block in many.blocks():
        assert len(block) <= 1 or sum(8 + len(event) for event, _ in block) <= block_bytes
    # Each event kept its own key, which decides where it goes if its segment is replaced.
    assert sorted(pair for block in many.blocks() for pair in block) == sorted(zip(events, keys, strict=True))


@given(event_lists, st.data(), st.integers(1, 5))
def test_replaced_segments_get_the_same_events(events: list[bytes], data: st.DataObject, segments: int) -> None:
    keys = data.draw(st.lists(key_names, min_size=len(events), max_size=len(events)))
    replaced = data.draw(st.integers(0, segments - 1))
    single, many = World(segments, 150), World(segments, 150)
    single.write_each(events, keys)
    many.write_many(pa.array(events, pa.large_binary()), pa.array(keys).dictionary_encode())
    for world in (single, many):
        world.split(replaced)
        world.write_many(pa.array(events, pa.binary()), pa.array(keys, pa.string()))
    assert many.stored() == single.stored()


@given(st.lists(st.binary(max_size=9), max_size=80), st.data(), st.integers(1, 9))
def test_events_without_keys_are_all_stored(events: list[bytes], data: st.DataObject, segments: int) -> None:
    keys = data.draw(st.none() | st.lists(st.none() | key_names, min_size=len(events), max_size=len(events)))
    world = World(segments, 100)
    world.write_many(pa.array(events, pa.binary()), keys)
    pairs = [pair for block in world.blocks() for pair in block]
    given_keys = keys or [None] * len(events)
    assert sorted(map(repr, pairs)) == sorted(map(repr, zip(events, given_keys, strict=True)))


def test_events_without_keys_are_spread_over_all_segments() -> None:
    world = World(10, 1000)
    world.write_many(pa.array([b"x"] * 1000), None)
    counts = [len(data) // 9 for data in world.stored()]
    assert all(99 <= count <= 101 for count in counts)


COLUMNS: dict[str, Callable[[list[bytes]], Any]] = {
    "list": list,
    "binary": lambda events: pa.array(events, pa.binary()),
    "large_binary": lambda events: pa.array(events, pa.large_binary()),
    "binary_view": lambda events: pa.array(events, pa.binary_view()),
    "fixed_size_binary": lambda events: pa.array([b"no", *events], pa.binary(2)).slice(1),
    "string": lambda events: pa.array([event.decode() for event in events]),
    "dictionary": lambda events: pa.array(events).dictionary_encode(),
    "chunked": lambda events: pa.chunked_array([events[:1], [], events[1:]], pa.binary()),
    "record_batch": lambda events: pa.RecordBatch.from_pydict({"offset": [0] * len(events), "event": events}),
    "table": lambda events: pa.table({"event": events}),
    "numpy bytes": lambda events: np.array(events),
    "numpy text": lambda events: np.array([event.decode() for event in events]),
    "numpy objects": lambda events: np.array(events, object),
    "numpy rows of uint8": lambda events: np.array([list(event) for event in events], np.uint8)[::1],
    "numpy records": lambda events: np.array(events).view("V2")[::-1][::-1],
    "pandas": lambda events: pd.Series(events),
    "pandas table": lambda events: pd.DataFrame({"event": events}),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_columns_of_events_that_are_accepted(column: Callable[[list[bytes]], Any]) -> None:
    events = [b"ab", b"cd", b"ab", b"ef"]
    world = World(1, 1000)
    world.write_many(column(events), "key")
    assert [event for event, _ in world.blocks()[0]] == events


KEYS: dict[str, Callable[[list[str]], Any]] = {
    "list": list,
    "tuple": tuple,
    "string": pa.array,
    "large_string": lambda keys: pa.array(keys, pa.large_string()),
    "string_view": lambda keys: pa.array(keys, pa.string_view()),
    "dictionary": lambda keys: pa.array(keys).dictionary_encode(),
    "chunked": lambda keys: pa.chunked_array([keys[:2], keys[2:]]),
    "numpy text": np.array,
    "numpy objects": lambda keys: np.array(keys, object),
    "pandas": pd.Series,
}


@pytest.mark.parametrize("column", KEYS.values(), ids=KEYS)
def test_columns_of_keys_that_are_accepted(column: Callable[[list[str]], Any]) -> None:
    keys = ["a", "käse", "a", ""]
    world = World(1, 1000)
    world.write_many([b"1", b"2", b"3", b"4"], column(keys))
    assert [key for _, key in world.blocks()[0]] == keys


def test_a_table_may_bring_its_own_keys() -> None:
    world = World(1, 1000)
    table = pa.table({"routing_key": ["a", None], "event": [b"1", b"2"], "offset": [1, 2]})
    world.write_many(table, None)
    world.write_many(table, "given")
    assert world.blocks()[0] == [(b"1", "a"), (b"2", None), (b"1", "given"), (b"2", "given")]


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "numbers": (pa.array([1, 2]), None, "binary or string, not int64"),
    "numpy numbers": (np.arange(3), None, "not int64 in 1"),
    "numpy in three dimensions": (np.zeros((1, 1, 1), np.uint8), None, "not uint8 in 3"),
    "numpy records of objects": (np.zeros(1, np.dtype([("a", object)])), None, "view it as one of these"),
    "numpy objects of numbers": (np.array([1, 2], object), None, "binary or string, not int64"),
    "mixed objects": ([b"a", 5], None, "no column of bytes or text"),
    "not iterable": (5, None, "no column of bytes or text"),
    "null": (pa.array([b"a", None]), None, "1 of the events are null"),
    "null of a fixed size": (pa.array([b"a", None], pa.binary(1)), None, "1 of the events are null"),
    "no such column": (pa.table({"payload": [b"a"]}), None, 'no column "event", only payload'),
    "too few keys": ([b"a", b"b"], ["k"], "2 events came with 1 routing keys"),
    "numbers as keys": ([b"a"], pa.array([1]), "routing keys is string, not int64"),
    "objects as keys": ([b"a"], [1], "no column of bytes or text"),
    "half a character": ([b"a"], ["\ud800"], "no column of bytes or text"),
    "keys that are not UTF-8": (
        [b"a"],
        pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")),
        "not UTF-8",
    ),
}


@pytest.mark.parametrize(("events", "keys", "message"), REFUSED.values(), ids=REFUSED)
def test_columns_that_are_refused(events: Any, keys: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        column_slices(events, keys, 100, too_large)


def test_an_event_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        column_slices([b"a", bytes(101)], None, 100, too_large)
    assert caught.value.specific_code == "event_too_large"
    assert caught.value.details["bytes"] == 101


def test_a_full_buffer_takes_no_slice() -> None:
    accumulator = BatchAccumulator(block_bytes=10, buffer_bytes=20)
    queue = accumulator.new_queue(0, lambda: None)
    accumulator.route([Route(equal_ranges(1)[0], queue)])
    ack = accumulator.new_ack()
    (column_slice,) = column_slices([b"0123456789"] * 3, "k", 100, too_large)
    assert column_slice.add_to(accumulator, ack)
    assert not column_slice.add_to(accumulator, ack)
    accumulator.close(closed_error())
    with pytest.raises(type(closed_error()), match="closed"):
        column_slices([b"x"], "k", 100, too_large)[0].add_to(accumulator, ack)


def test_a_segment_replaced_during_framing_is_noticed() -> None:
    world = World(1, 100)
    ack = world.accumulator.new_ack()
    routes = world.accumulator.routes_now()
    world.split(0)
    assert not world.accumulator.add_runs(routes, [], ack)
    assert world.queues[0].wants is Wants.NOTHING


def _numbered(keys: int, numbers: range) -> tuple[list[bytes], list[str]]:
    pairs = [(f"k{key}:{number}".encode(), f"k{key}") for number in numbers for key in range(keys)]
    return [event for event, _ in pairs], [key for _, key in pairs]


def _check_all(cluster: Cluster, keys: int, per_key: int) -> None:
    numbers_by_key: dict[str, list[int]] = {}
    for event in cluster.all_events():
        key, number = event.decode().split(":")
        numbers_by_key.setdefault(key, []).append(int(number))
    assert numbers_by_key == {f"k{key}": list(range(per_key)) for key in range(keys)}


@pytest.mark.parametrize("seed", range(4))
def test_scaling_under_columns_keeps_the_order_of_each_key(make_cluster: Make, seed: int) -> None:
    """Splits and merges, with connections that break, while columns, batches and single events are written in turn."""
    cluster = make_cluster(2)
    dice = random.Random(seed)
    if seed % 2:
        cluster.before_append = lambda _: dice.random() < 0.05
        cluster.after_append = lambda _: dice.random() < 0.05
    with cluster.client() as headrace, headrace.writer("s", "t", SMALL_BLOCKS) as writer:
        writer.write_many(*_numbered(20, range(30)))
        left, middle = cluster.scale([0], [(0.0, 0.25), (0.25, 0.5)])
        writer.write_batch(*_numbered(20, range(30, 40)))
        writer.write_many(*_numbered(20, range(40, 60)))
        (merged,) = cluster.scale([middle, 1], [(0.25, 1.0)])
        for event, key in zip(*_numbered(20, range(60, 70)), strict=True):
            writer.write(event, key)
        writer.write_many(*_numbered(20, range(70, 90)))
        cluster.scale([left, merged], [(0.0, 0.6), (0.6, 1.0)])
        ack = writer.write_many(*_numbered(20, range(90, 120)))
        ack.result(timeout_s=30)
        writer.flush()
        assert writer.acknowledged_events == 20 * 120
    _check_all(cluster, 20, 120)


def test_large_events_have_blocks_of_their_own() -> None:
    large = bytes(range(256)) * (EVENT_BYTES_MAX // 256) + b"and more"
    events = [b"", large, b"after", b""]
    world = World(1, EVENT_BYTES_MAX)
    world.write_many(events, "key")
    assert [block for block in world.blocks() if block] == [
        [(b"", "key")],
        [(large, "key")],
        [(b"after", "key"), (b"", "key")],
    ]
    assert [block.is_large for block in world.queues[0].ready] == [False, True]
    world.split(0)
    assert [event for block in world.blocks() for event, _ in block] == events


def test_an_empty_column_is_acknowledged_at_once(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        for empty in (
            [],
            pa.array([], pa.binary()),
            np.zeros((0, 5), np.uint8),
            pa.table({"event": pa.array([], pa.binary())}),
        ):
            writer.write_many(empty, []).result(timeout_s=10)
        writer.write_many(np.zeros((3, 0), np.uint8), "key")
    assert cluster.events(1) == [b""] * 3


def test_columns_wait_while_the_buffer_is_full(cluster: Cluster) -> None:
    events, keys = _numbered(7, range(2_000))
    options = WriterOptions(block_bytes=1_000, buffer_bytes=2_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_writes, "SLICE_EVENTS", 100)
        with cluster.client() as headrace, headrace.writer("s", "t", options) as writer:
            writer.write_many(events, keys)
    _check_all(cluster, 7, 2_000)


def test_the_asynchronous_writer_takes_columns(cluster: Cluster) -> None:
    async def write() -> None:
        transport = httpx.MockTransport(cluster.handle)
        async with AsyncHeadrace("http://controller", transport=transport) as headrace:
            async with await headrace.writer("s", "t", WriterOptions(block_bytes=100, buffer_bytes=300)) as writer:
                await (await writer.write_many(*_numbered(5, range(400))))
            cluster.seal_stream()

    asyncio.run(write())
    _check_all(cluster, 5, 400)


def test_columns_after_the_seal_are_refused(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        cluster.seal_stream()
        with pytest.raises(SealedError):
            writer.write_many([b"x"], "k").result(timeout_s=30)
        with pytest.raises(SealedError):
            writer.write_many([b"x"], "k")
        writer.close()


def test_without_arrow_the_error_says_what_to_install(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("headrace.client.writing.column_writes", "headrace.codec.event_columns"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("headrace.client.writing.column_writes")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with connect("http://controller", transport=httpx.MockTransport(cluster.handle)) as headrace:
        writer = headrace.writer("s", "t")
        with pytest.raises(InvalidRequestError, match=r"install headrace\[arrow\]"):
            writer.write_many([b"x"])

"""A client seals an active segment over the wire: writers go on, and readers get each event once and in order."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
from real_cluster import RealCluster

from headrace.client import Headrace, ScalingPolicy, WriterOptions
from headrace.model.stream_state import StreamState

SMALL_BLOCKS = WriterOptions(block_bytes=2_000, buffer_bytes=200_000)
KEYS = [f"k{number}" for number in range(20)]


def _numbers(events: list[bytes]) -> dict[str, list[int]]:
    numbers_by_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        numbers_by_key[key].append(int(number))
    return dict(numbers_by_key)


def _settled_epoch(headrace: Headrace) -> int:
    """The epoch once no scaling runs: writers get the next segments before the scaling has ended."""
    while (stream := headrace.admin.get_stream("shop", "orders")).state is not StreamState.ACTIVE:
        time.sleep(0.005)
    return stream.epoch


def test_writers_and_readers_go_on_behind_it(real: RealCluster, headrace: Headrace) -> None:
    admin = headrace.admin
    admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    with headrace.writer("shop", "orders", SMALL_BLOCKS) as writer:
        for number in range(200):
            writer.write_batch([f"{key}:{number}".encode() for key in KEYS], KEYS)
            if number in (50, 120):
                writer.flush()
                assert _settled_epoch(headrace) == (number == 120)
                sealed, other = admin.segments("shop", "orders")
                real.segment_stores.seal_segment(sealed.name)
        writer.flush()
    assert _settled_epoch(headrace) == 2
    left = admin.segments("shop", "orders")
    assert {segment.key_range for segment in left} == {sealed.key_range, other.key_range}
    expected = {key: list(range(200)) for key in KEYS}
    tail = admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", "earliest", tail) as reader:
        assert _numbers([read.event for read in reader]) == expected


def test_a_reader_at_its_end_has_it_replaced(real: RealCluster, headrace: Headrace) -> None:
    """No writer has found it sealed yet."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as writer:
        writer.write(b"k:0", "k").result()
    (sealed,) = headrace.admin.segments("shop", "orders")
    real.segment_stores.seal_segment(sealed.name)
    with headrace.reader("shop", "orders", "earliest") as reader:
        batch = reader.read_batch(timeout_s=30)
        assert batch is not None
        assert batch.events == [b"k:0"]
        while not headrace.admin.segments("shop", "orders")[0].segment_id:
            assert reader.read_batch(timeout_s=0.01) is None
        with headrace.writer("shop", "orders") as writer:
            writer.write(b"k:1", "k").result()
        batch = reader.read_batch(timeout_s=30)
        assert batch is not None
        assert batch.events == [b"k:1"]


@pytest.mark.parametrize("times", [1, 3])
def test_two_writers_of_one_segment(real: RealCluster, headrace: Headrace, times: int) -> None:
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as first, headrace.writer("shop", "orders") as second:
        for number in range(times):
            (sealed,) = headrace.admin.segments("shop", "orders")
            real.segment_stores.seal_segment(sealed.name)
            acks = [first.write(f"one:{number}".encode(), "k"), second.write(f"two:{number}".encode(), "k")]
            for ack in acks:
                ack.result()
            assert _settled_epoch(headrace) == number + 1
    tail = headrace.admin.stream_cut("shop", "orders")
    with headrace.reader("shop", "orders", "earliest", tail) as reader:
        assert _numbers([read.event for read in reader]) == {"one": list(range(times)), "two": list(range(times))}

"""A stream with 10,000 epochs costs what one with 50 does: only what lies between two points is paid for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.metadata.history_records import (
    SealedSegment,
    create_epoch,
    sealed_segments_body,
    sealed_segments_key,
    shard_of_segment,
)
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.truncation import truncation_body, truncation_key
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.epochs import Epoch
from headrace.model.names import container_of_segment, segment_name
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Create, Key, Replace
from headrace.ports.segment_stores import SegmentScaleRate

FEW, MANY = 50, 10_000
BYTES = 10
"""In every segment."""

SINCE_HEAD = 20
"""Epochs between the head and the tail."""

READ, QUERY, TRANSACTION, SEND = "read", "query", "transaction", "send"


def _name(number: int) -> str:
    return segment_name("s", "t", segment_id(number, number + 1))


def _id(number: int) -> int:
    """The segment that epoch `number` made of the one before."""
    return segment_id(number, number + 1)


def _epochs(first: Epoch, count: int) -> list[Epoch]:
    """Segment 0, on the left, lives for ever; on the right each epoch replaces the one segment that is there."""
    left, right = first.segments
    epochs = [first]
    for number in range(1, count):
        following = StreamSegment(_id(number), KeyRange(0.5, 1.0))
        epochs.append(Epoch(number, first.creation_time_ms + number, (left, following), (right,)))
        right = following
    return epochs


def _grown(world: StreamWorld, count: int) -> Any:
    """Stream `t` in its epoch `count` - 1, truncated SINCE_HEAD epochs ago, as its workflows would have left it."""
    world.create()
    epochs = _epochs(world.records.get("s", "t").stream.epoch, count)
    store, key = world.bare_store, current_key("s", "t")
    record = store.get(key)
    stored = StreamRecords(store).stored(record)
    assert stored is not None
    stream = replace(stored.stream, epoch=epochs[-1], recorded_epoch=count - 1)
    store.write(Replace(key, stream_body(stream), stored.version))
    shards: dict[tuple[int, int], dict[int, SealedSegment]] = {}
    for epoch in epochs[1:]:
        (gone,) = epoch.replaced
        shards.setdefault(shard_of_segment(gone.segment_id), {})[gone.segment_id] = SealedSegment(BYTES, epoch.number)
    writes = [write for epoch in epochs[1:] for write in create_epoch(stream, epoch)]
    for start in range(0, len(writes), 100):
        store.write(*writes[start : start + 100])
    for shard, sealed in shards.items():
        store.write(Create(sealed_segments_key("s", "t", shard), sealed_segments_body(sealed)))
    for number in range(count - SINCE_HEAD, count):
        world.bare_segment_stores.create_segment(_name(number), SegmentScaleRate())
        world.bare_segment_stores.extend(_name(number), BYTES)
    world.bare_segment_stores.extend("s/t/0.#epoch.0", BYTES)
    claim = claim_body(ContainerClaim("store-0", "127.0.0.1", 1, "local"))
    store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container_of_segment(_name(count - 1), 8))), claim))
    cut = StreamCut.of("s", "t", {0: 1, _id(count - SINCE_HEAD): 1})
    head = PlacedCut(cut, epochs[count - SINCE_HEAD].segments)
    truncation = Truncation(head, count - SINCE_HEAD, (count - SINCE_HEAD) * BYTES + 2)
    store.write(Create(truncation_key("s", "t"), truncation_body(truncation)))
    world.calls.counts.clear()
    return world


@pytest.fixture(scope="module")
def streams() -> dict[int, Any]:
    return {count: _grown(StreamWorld(), count) for count in (FEW, MANY)}


Ask = Callable[[Any, int], object]
WARM: dict[str, tuple[Ask, dict[str, int]]] = {
    "tail": (lambda w, n: w.segments.segments_at_tail("s", "t"), {READ: 1}),
    "head": (lambda w, n: w.segments.segments_at_head("s", "t"), {READ: 1}),
    "successors of an active segment": (lambda w, n: w.segments.successors("s", "t", _id(n - 1)), {READ: 1}),
    "successors of a sealed segment": (lambda w, n: w.segments.successors("s", "t", _id(n - 9)), {READ: 1}),
    "predecessors": (lambda w, n: w.segments.predecessors("s", "t", _id(n - 9)), {READ: 1}),
    "endpoint": (lambda w, n: w.segments.endpoint("s", "t", _id(n - 1)), {READ: 1}),
    "an epoch": (lambda w, n: w.segments.segments_of_epoch("s", "t", n - 9), {READ: 1}),
    "a time": (
        lambda w, n: w.segments.segments_at_time("s", "t", w.streams.get_stream("s", "t").creation_time_ms + n - 9),
        {READ: 2, QUERY: 1},
    ),
    "cut at the head": (lambda w, n: w.segments.stream_cut("s", "t", "head"), {READ: 1}),
    "cut at the tail": (
        lambda w, n: w.segments.stream_cut("s", "t", "tail"),
        {READ: 1, "segment store segment_infos": 1},
    ),
    "all between head and tail": (
        lambda w, n: w.segments.between("s", "t", None, None),
        {READ: 1, "segment store segment_infos": 1},
    ),
    "a cut that names the oldest segment": (
        lambda w, n: w.cuts.is_valid("s", "t", {0: 2, _id(n - 9): 2}),
        {READ: 1, "segment store segment_infos": 1},
    ),
    "scaling events": (
        lambda w, n: w.scaling_events.scaling_events(
            "s", "t", w.streams.get_stream("s", "t").creation_time_ms + n - 9, 1 << 62, 5
        ),
        {READ: 2, QUERY: 1},
    ),
}


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("name", WARM)
def test_a_warm_question_costs_the_same(streams: dict[int, Any], name: str, count: int):
    ask, cost = WARM[name]
    world = streams[count]
    ask(world, count)
    world.calls.counts.clear()
    ask(world, count)
    assert dict(world.calls.counts) == cost


@pytest.mark.parametrize("name", WARM)
def test_a_cold_question_costs_the_same(streams: dict[int, Any], name: str):
    """Another process, with nothing in memory."""
    costs = []
    for count in (FEW, MANY):
        world = streams[count]
        colder = StreamWorld()
        cold = type(world.segments)(
            world.store, world.segment_stores, lambda streams=world.streams: streams.acceptance, 8
        )
        colder.streams, colder.segments = world.streams, cold
        colder.cuts = type(world.cuts)(world.store, world.segment_stores, cold)
        colder.scaling_events = type(world.scaling_events)(world.store)
        world.calls.counts.clear()
        WARM[name][0](colder, count)
        costs.append(dict(world.calls.counts))
    assert costs[0] == costs[1]


def test_between_all_is_what_lies_between(streams: dict[int, Any]):
    for world in streams.values():
        assert len(world.segments.between("s", "t", None, None).ranges) == SINCE_HEAD + 1
        assert world.cuts.distance_bytes("s", "t", None, None) == (SINCE_HEAD + 1) * BYTES - 2


def test_a_truncation_costs_what_it_removes(streams: dict[int, Any]):
    costs = []
    for count, world in streams.items():
        before = world.records.get_with_truncation("s", "t")[1].size_bytes
        world.calls.counts.clear()
        world.truncate({0: 2, _id(count - 10): 3})
        costs.append(dict(world.calls.counts))
        assert world.records.get_with_truncation("s", "t")[1].size_bytes == before + 1 + 9 + 9 * BYTES + 3
    assert costs[0] == costs[1]

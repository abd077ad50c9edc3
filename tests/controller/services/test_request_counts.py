"""What each call costs in requests to the metadata store, the queue and the segment stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.names import container_of_segment
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Create, Key

S2, S3 = 1 << 32 | 2, 1 << 32 | 3
READ, QUERY, WRITE, TRANSACTION, SEND = "read", "query", "write", "transaction", "send"
INFOS = "segment store segment_infos"
Call = Callable[[Any], object]


def _create(world: StreamWorld) -> object:
    configuration = StreamConfiguration(ScalingPolicy.fixed(4), tags=tuple(f"tag-{index}" for index in range(128)))
    return world.streams.create_stream("s", "new", configuration)


def _scale(world: StreamWorld) -> object:
    return world.streams.scale_stream("s", "t", [1], [KeyRange(0.5, 1.0)])


# What a process pays that has just started (nothing cached), and what it pays when it is asked again.
COSTS: dict[str, tuple[Call, dict[str, int], dict[str, int]]] = {
    "get stream": (lambda w: w.streams.get_stream("s", "t"), {READ: 1}, {READ: 1}),
    "list streams": (lambda w: w.streams.list_streams("s", 100), {QUERY: 1}, {QUERY: 1}),
    "list streams by tag": (
        lambda w: w.streams.list_streams("s", 100, tag="a"),
        {QUERY: 1, READ: 1},
        {QUERY: 1, READ: 1},
    ),
    "list no streams": (lambda w: w.streams.list_streams("s", 100, "z"), {QUERY: 1, READ: 1}, {QUERY: 1, READ: 1}),
    "scale status": (lambda w: w.streams.scale_status("s", "t", 1), {READ: 1}, {READ: 1}),
    "get scope": (lambda w: w.scopes.get_scope("s"), {READ: 1}, {READ: 1}),
    "list scopes": (lambda w: w.scopes.list_scopes(10), {QUERY: 1}, {QUERY: 1}),
    "segments at head": (lambda w: w.segments.segments_at_head("s", "t"), {READ: 2}, {READ: 1}),
    "segments at tail": (lambda w: w.segments.segments_at_tail("s", "t"), {READ: 1}, {READ: 1}),
    "segments of the epoch": (lambda w: w.segments.segments_of_epoch("s", "t", 1), {READ: 1}, {READ: 1}),
    "segments of an old epoch": (lambda w: w.segments.segments_of_epoch("s", "t", 0), {READ: 2}, {READ: 1}),
    "segments at a time": (
        lambda w: w.segments.segments_at_time("s", "t", w.clock.now_ms() - 1_000),
        {READ: 2, QUERY: 1},
        {READ: 1, QUERY: 1},
    ),
    "segments now": (lambda w: w.segments.segments_at_time("s", "t", w.clock.now_ms()), {READ: 1}, {READ: 1}),
    "successors of an active segment": (lambda w: w.segments.successors("s", "t", S2), {READ: 1}, {READ: 1}),
    "successors of a sealed segment": (lambda w: w.segments.successors("s", "t", 0), {READ: 2}, {READ: 1}),
    "predecessors": (lambda w: w.segments.predecessors("s", "t", S2), {READ: 1}, {READ: 1}),
    "endpoint": (lambda w: w.segments.endpoint("s", "t", S2), {READ: 1}, {READ: 1}),
    "stream cut at tail": (lambda w: w.segments.stream_cut("s", "t", "tail"), {READ: 1, INFOS: 1}, {READ: 1, INFOS: 1}),
    "stream cut at head": (lambda w: w.segments.stream_cut("s", "t", "head"), {READ: 2}, {READ: 1}),
    "between head and tail": (
        lambda w: w.segments.between("s", "t", None, None),
        {READ: 3, INFOS: 1},
        {READ: 1, INFOS: 1},
    ),
    "between explicit cuts": (
        lambda w: w.segments.between("s", "t", {0: 0, 1: 0}, {S2: 0, S3: 0, 1: 0}),
        {READ: 3},
        {READ: 1},
    ),
}

# Calls that change something, each on a fresh world.
CHANGES: dict[str, tuple[Call, dict[str, int]]] = {
    "create scope": (lambda w: w.scopes.create_scope("new"), {READ: 1, TRANSACTION: 1}),
    "delete scope": (lambda w: w.scopes.delete_scope("empty"), {READ: 1, QUERY: 6, TRANSACTION: 2}),
    "create stream": (_create, {READ: 1, TRANSACTION: 1, SEND: 1}),
    "scale stream": (_scale, {READ: 1, TRANSACTION: 1, SEND: 1}),
    "seal stream": (lambda w: w.streams.seal_stream("s", "t"), {READ: 1, TRANSACTION: 1, SEND: 1}),
    "delete stream": (lambda w: w.streams.delete_stream("s", "sealed"), {READ: 1, TRANSACTION: 1, SEND: 1}),
}


@pytest.fixture
def busy_world(world: StreamWorld) -> StreamWorld:
    """Stream `t` in epoch 1, a sealed stream, an empty scope, a claimed container."""
    world.create(tags=("a",))
    world.clock.advance(5_000)
    world.scale([0], [0.0, 0.25, 0.5])
    world.create("sealed")
    world.seal("sealed")
    world.scopes.create_scope("empty")
    container = container_of_segment("s/t/2.#epoch.1", 8)
    claim = claim_body(ContainerClaim("store-0", "127.0.0.1", 1, "local"))
    world.bare_store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim))
    world.calls.counts.clear()
    return world


@pytest.mark.parametrize("name", COSTS)
def test_cost_of_a_question(busy_world: StreamWorld, name: str):
    ask, cold, warm = COSTS[name]
    ask(busy_world)
    assert dict(busy_world.calls.counts) == cold
    busy_world.calls.counts.clear()
    ask(busy_world)
    assert dict(busy_world.calls.counts) == warm


@pytest.mark.parametrize("name", CHANGES)
def test_cost_of_a_change(busy_world: StreamWorld, name: str):
    change, cost = CHANGES[name]
    change(busy_world)
    assert dict(busy_world.calls.counts) == cost


def test_a_sealed_stream_costs_its_segment_stores_nothing(busy_world: StreamWorld):
    assert len(busy_world.segments.stream_cut("s", "sealed", "tail").positions) == 2
    assert dict(busy_world.calls.counts) == {READ: 2}
    busy_world.calls.counts.clear()
    busy_world.segments.stream_cut("s", "sealed", "tail")
    assert dict(busy_world.calls.counts) == {READ: 1}


def test_many_epochs_are_read_in_batches(world: StreamWorld):
    world.create(segments=1)
    for epoch in range(250):
        world.scale([(epoch << 32 | epoch)], [0.0, 1.0])
    world.calls.counts.clear()
    assert len(world.segments.between("s", "t", None, None).ranges) == 251
    assert dict(world.calls.counts) == {READ: 6, INFOS: 1}
    world.calls.counts.clear()
    world.segments.between("s", "t", None, None)
    assert dict(world.calls.counts) == {READ: 1, INFOS: 1}

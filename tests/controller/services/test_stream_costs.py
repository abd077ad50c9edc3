"""What updates, truncations, questions about cuts and deletions of scopes cost, the calls and the workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

S2, S3 = 1 << 32 | 2, 1 << 32 | 3
READ, QUERY, WRITE, TRANSACTION, SEND = "read", "query", "write", "transaction", "send"
INFOS, POLICY = "segment store segment_infos", "segment store update_segment_policy"
TRUNCATE, DELETE = "segment store truncate_segment", "segment store delete_segments"
Call = Callable[[Any], object]

TAGGED = StreamConfiguration(ScalingPolicy.fixed(2), tags=("b",))
RATED = StreamConfiguration(ScalingPolicy.by_event_rate(5, 2, 1))

QUESTIONS: dict[str, tuple[Call, dict[str, int], dict[str, int]]] = {
    "whether a cut is valid": (
        lambda w: w.cuts.is_valid("s", "t", {S2: 0, S3: 0, 1: 7}),
        {READ: 1, INFOS: 1},
        {READ: 1, INFOS: 1},
    ),
    "whether an old cut is valid": (
        lambda w: w.cuts.is_valid("s", "t", {0: 5, 1: 0}),
        {READ: 3},
        {READ: 1},
    ),
    "whether a cut is reached": (
        lambda w: w.cuts.check_reached("s", "t", {S2: 0, S3: 0, 1: 7}),
        {READ: 1, INFOS: 1},
        {READ: 1, INFOS: 1},
    ),
    "distance of head and tail": (
        lambda w: w.cuts.distance_bytes("s", "t", None, None),
        {READ: 3, INFOS: 1},
        {READ: 1, INFOS: 1},
    ),
    "scaling events": (
        lambda w: w.scaling_events.scaling_events("s", "t", 0, 1 << 62, 100),
        {READ: 1, QUERY: 1},
        {READ: 1, QUERY: 1},
    ),
    "epochs": (
        lambda w: w.scaling_events.epoch_history("s", "t", 1 << 31, 100),
        {READ: 3},
        {READ: 1},
    ),
    "streams by prefix": (lambda w: w.streams.list_streams("s", 9, prefix="t"), {QUERY: 1}, {QUERY: 1}),
    "whether a scope is being deleted": (lambda w: w.scopes.is_deleting("s"), {READ: 1}, {READ: 1}),
}

ACCEPTED: dict[str, tuple[Call, dict[str, int], dict[str, int]]] = {
    "update of tags": (
        lambda w: w.streams.update_stream("s", "t", TAGGED),
        {READ: 1, TRANSACTION: 1, SEND: 1},
        {READ: 11, TRANSACTION: 4},
    ),
    "update of the rate": (
        lambda w: w.streams.update_stream("s", "t", RATED),
        {READ: 1, TRANSACTION: 1, SEND: 1},
        {READ: 10, TRANSACTION: 3, POLICY: 3},
    ),
    "truncation": (
        lambda w: w.streams.truncate_stream("s", "t", {S2: 0, S3: 0, 1: 7}),
        {READ: 1, TRANSACTION: 1, SEND: 1},
        {READ: 10, TRANSACTION: 2, INFOS: 1, TRUNCATE: 1, DELETE: 1},
    ),
    "deletion of an empty scope": (
        lambda w: w.scope_deletions.delete_scope_recursively("empty"),
        {READ: 1, TRANSACTION: 1, SEND: 1},
        {READ: 1, QUERY: 3, TRANSACTION: 1},
    ),
}
"""What the call costs, and then the workflow."""


@pytest.fixture
def busy_world(world: StreamWorld) -> StreamWorld:
    """Stream `t` in epoch 1: 0 (5 bytes) was split in 2 and 3; 1 has 7 bytes."""
    world.create(tags=("a",))
    world.append(0, 5)
    world.append(1, 7)
    world.clock.advance(5_000)
    world.scale([0], [0.0, 0.25, 0.5])
    world.scopes.create_scope("empty")
    world.calls.counts.clear()
    return world


@pytest.mark.parametrize("name", QUESTIONS)
def test_cost_of_a_question(busy_world: StreamWorld, name: str):
    ask, cold, warm = QUESTIONS[name]
    ask(busy_world)
    assert dict(busy_world.calls.counts) == cold
    busy_world.calls.counts.clear()
    ask(busy_world)
    assert dict(busy_world.calls.counts) == warm


@pytest.mark.parametrize("name", ACCEPTED)
def test_cost_of_a_change(busy_world: StreamWorld, name: str):
    accept, call, workflow = ACCEPTED[name]
    accept(busy_world)
    assert dict(busy_world.calls.counts) == call
    busy_world.calls.counts.clear()
    assert busy_world.drain() == 1
    assert dict(busy_world.calls.counts) == workflow


def test_segments_go_in_batches(world: StreamWorld):
    """1,000 segments that a merge replaced: one call deletes them."""
    world.create(segments=1_000)
    world.update(segments=1)
    ids = world.tail_ids()
    world.scale(ids, [0.0, 1.0])
    world.streams.truncate_stream("s", "t", {1 << 32 | 1_000: 0})
    world.calls.counts.clear()
    world.drain()
    assert world.calls.counts[DELETE] == 1
    assert world.calls.counts[TRANSACTION] == 2

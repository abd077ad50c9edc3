"""What calls and workflows of reader groups cost in requests to the metadata store, the queue and segment stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import StreamCut

READ, QUERY, TRANSACTION, SEND = "read", "query", "transaction", "send"
ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
Call = Callable[[Any], object]


def _reads(*streams: str, retention: RetentionMode = RetentionMode.MANUAL) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration(tuple(GroupStream("s", stream) for stream in streams), retention)


START = StreamCut.of("s", "t", {0: 0, 1: 0})
CUTS = ReaderGroupConfiguration((GroupStream("s", "t", START, START),))

CALLS: dict[str, tuple[Call, dict[str, int]]] = {
    "get": (lambda w: w.reader_groups.get_reader_group("s", "g"), {READ: 1}),
    "list": (lambda w: w.reader_groups.list_reader_groups("s", 100), {QUERY: 1}),
    "list none": (lambda w: w.reader_groups.list_reader_groups("s", 100, "z"), {QUERY: 1, READ: 1}),
    "create": (
        lambda w: w.reader_groups.create_reader_group("s", "new", ID, _reads("t", "u")),
        {READ: 1, TRANSACTION: 1, SEND: 1},
    ),
    "create one that exists": (
        lambda w: w.reader_groups.create_reader_group("s", "g", ID, _reads("t", "u")),
        {READ: 1},
    ),
    "update": (
        lambda w: w.reader_groups.update_reader_group("s", "g", ID, 0, _reads("t")),
        {READ: 1, TRANSACTION: 1, SEND: 1},
    ),
    "update with another stream": (
        lambda w: w.reader_groups.update_reader_group("s", "g", ID, 0, _reads("v")),
        {READ: 2, TRANSACTION: 1, SEND: 1},
    ),
    "create with cuts": (
        lambda w: w.reader_groups.create_reader_group("s", "new", ID, CUTS),
        {READ: 1, TRANSACTION: 1, SEND: 1},
    ),
    "reset": (lambda w: w.reader_groups.reset_reader_group("s", "g", ID, 0), {READ: 1, TRANSACTION: 1, SEND: 1}),
    "delete": (lambda w: w.reader_groups.delete_reader_group("s", "g", ID), {READ: 1, TRANSACTION: 1, SEND: 1}),
}


@pytest.fixture
def groups_world(world: StreamWorld) -> StreamWorld:
    """The group `g` reads the streams `t` and `u` and is a subscriber of both; there is a stream `v`."""
    for stream in ("t", "u", "v"):
        world.create(stream)
    world.reader_groups.create_reader_group("s", "g", ID, _reads("t", "u"))
    world.drain()
    world.calls.counts.clear()
    return world


@pytest.mark.parametrize("name", CALLS)
def test_cost_of_a_call(groups_world: StreamWorld, name: str):
    ask, cost = CALLS[name]
    ask(groups_world)
    assert dict(groups_world.calls.counts) == cost


def _cost(world: StreamWorld, *operations: Call) -> Counter[str]:
    """Of accepting these operations and doing them, one after the other."""
    world.calls.counts.clear()
    for operation in operations:
        operation(world)
        world.drain()
    return Counter(world.calls.counts)


def _difference(of: Counter[str], without: Counter[str]) -> dict[str, int]:
    of.subtract(without)
    return {kind: count for kind, count in of.items() if count}


def test_a_group_costs_little_more_than_the_stream_of_its_state(groups_world: StreamWorld):
    """Beside that stream: the record, the steps' reads of it, and one message instead of two or three."""
    silent = _reads("t", "u", retention=RetentionMode.NONE)
    one_segment = StreamConfiguration(ScalingPolicy.fixed(1), rollover_size_bytes=silent.rollover_size_bytes)
    stream = _cost(groups_world, lambda w: w.streams.create_stream("s", "like", one_segment))
    group = _cost(groups_world, lambda w: w.reader_groups.create_reader_group("s", "new", ID, silent))
    assert _difference(group, stream) == {READ: 6, TRANSACTION: 2}
    reset = _cost(groups_world, lambda w: w.reader_groups.reset_reader_group("s", "new", ID, 0))
    assert reset == {READ: 4, TRANSACTION: 2, SEND: 1}
    stream = _cost(
        groups_world, lambda w: w.streams.seal_stream("s", "like"), lambda w: w.streams.delete_stream("s", "like")
    )
    group = _cost(groups_world, lambda w: w.reader_groups.delete_reader_group("s", "new", ID))
    assert _difference(group, stream) == {READ: 7, TRANSACTION: 2, SEND: -1}


def test_each_subscription_costs_the_same(groups_world: StreamWorld):
    """Two reads and one transaction, whoever else is a subscriber and however old the stream is."""
    one_stream, two_streams = _reads("t"), _reads("t", "u")
    create_one = _cost(groups_world, lambda w: w.reader_groups.create_reader_group("s", "one", ID, one_stream))
    create_two = _cost(groups_world, lambda w: w.reader_groups.create_reader_group("s", "two", ID, two_streams))
    assert _difference(create_two, create_one) == {READ: 2, TRANSACTION: 1}
    reset_one = _cost(groups_world, lambda w: w.reader_groups.reset_reader_group("s", "one", ID, 0))
    reset_two = _cost(groups_world, lambda w: w.reader_groups.reset_reader_group("s", "two", ID, 0))
    assert _difference(reset_two, reset_one) == {READ: 2, TRANSACTION: 1}
    delete_one = _cost(groups_world, lambda w: w.reader_groups.delete_reader_group("s", "one", ID))
    delete_two = _cost(groups_world, lambda w: w.reader_groups.delete_reader_group("s", "two", ID))
    assert _difference(delete_two, delete_one) == {READ: 2, TRANSACTION: 1}

"""What calls and workflows of key-value tables cost in requests to the metadata store, the queue and segment stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.model.key_value_tables import TableConfiguration

READ, QUERY, TRANSACTION, SEND = "read", "query", "transaction", "send"
CREATE_SEGMENT, DELETE_SEGMENT = "segment store create_table_segment", "segment store delete_table_segment"
CONFIGURATION = TableConfiguration(3, 8)
Call = Callable[[Any], object]

CALLS: dict[str, tuple[Call, dict[str, int]]] = {
    "get": (lambda w: w.tables.get_table("s", "k"), {READ: 1}),
    "segments": (lambda w: w.tables.segments_of_table("s", "k"), {READ: 1}),
    "list": (lambda w: w.tables.list_tables("s", 100), {QUERY: 1}),
    "list none": (lambda w: w.tables.list_tables("s", 100, "z"), {QUERY: 1, READ: 1}),
    "create": (lambda w: w.tables.create_table("s", "new", CONFIGURATION), {READ: 1, TRANSACTION: 1, SEND: 1}),
    "delete": (lambda w: w.tables.delete_table("s", "k"), {READ: 1, TRANSACTION: 1, SEND: 1}),
}


@pytest.fixture
def table_world(world: StreamWorld) -> StreamWorld:
    """The table `k` of three segments."""
    world.tables.create_table("s", "k", CONFIGURATION)
    world.drain()
    world.calls.counts.clear()
    return world


@pytest.mark.parametrize("name", CALLS)
def test_cost_of_a_call(table_world: StreamWorld, name: str):
    ask, cost = CALLS[name]
    ask(table_world)
    assert dict(table_world.calls.counts) == cost


def test_cost_of_the_workflows(table_world: StreamWorld):
    """One call per segment, and nothing else that grows."""
    table_world.tables.create_table("s", "new", CONFIGURATION)
    table_world.calls.counts.clear()
    table_world.drain()
    assert dict(table_world.calls.counts) == {READ: 3, CREATE_SEGMENT: 3, TRANSACTION: 1}
    table_world.tables.delete_table("s", "new")
    table_world.calls.counts.clear()
    table_world.drain()
    assert dict(table_world.calls.counts) == {READ: 2, DELETE_SEGMENT: 3, TRANSACTION: 1}

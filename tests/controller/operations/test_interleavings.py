"""Two processors work on one request, call by call in any order: both end, and the outcome is that of one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turns import run_in_turns

from headrace.controller.stream_requests import StreamRequestProcessor
from headrace.model.errors import AlreadyExistsError, ConflictError, IllegalStateError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration


def _accept(world: Any, kind: str, ranges: Any) -> None:
    if kind == "create_stream":
        world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2), tags=("a", "b")))
        return
    world.create(segments=2, tags=("a",))
    if kind == "update_stream":
        world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3), tags=("b", "c")))
        return
    if kind == "truncate_stream":
        world.append(0, 3)
        world.scale([0], [0.0, 0.25, 0.5])
        world.streams.truncate_stream("s", "t", {1 << 32 | 2: 0, 1 << 32 | 3: 0, 1: 0})
        return
    if kind == "scale_stream":
        world.append(0, 3)
        world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
        return
    world.scale([0], [0.0, 0.25, 0.5])
    if kind == "delete_stream":
        world.seal()
        world.streams.delete_stream("s", "t")
    else:
        world.streams.seal_stream("s", "t")


def _final(world: Any) -> tuple[Any, Any]:
    """Records without their versions: a second processor may write an equal record once more, and no other."""
    bodies = {key: body for key, (_, body) in world.everything().items()}
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    return bodies, infos


@pytest.mark.parametrize(
    "kind", ["create_stream", "update_stream", "truncate_stream", "scale_stream", "seal_stream", "delete_stream"]
)
@given(order=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=40))
@settings(max_examples=40)
def test_two_processors_on_one_request(stream_world: Any, kind: str, order: list[int]):
    alone = stream_world.StreamWorld()
    _accept(alone, kind, stream_world.ranges)
    alone.drain()
    world = stream_world.StreamWorld()
    _accept(world, kind, stream_world.ranges)
    (message,) = world.bare_queue.receive()
    failures = run_in_turns(
        world.calls,
        lambda: StreamRequestProcessor(world.store, world.segment_stores, world.clock).process(message.body),
        order,
    )
    assert [error for error in failures if not isinstance(error, ConflictError)] == []
    assert len(failures) < 2, "one of them must get through"
    world.processor.process(message.body)
    assert _final(world) == _final(alone)


@given(data=st.data())
@settings(max_examples=60)
def test_operations_of_users_amid_a_workflow(stream_world: Any, data: st.DataObject):
    """Whatever users ask for while a scale runs step by step, they are refused or accepted, and nothing breaks."""
    world = stream_world.StreamWorld()
    _accept(world, "scale_stream", stream_world.ranges)
    (message,) = world.bare_queue.receive()
    before = world.tail_ids()
    asked: list[str] = []
    refused: list[str] = []
    for _ in world.processor.work(message.body):
        operation = data.draw(st.sampled_from(["seal", "scale", "same scale", "delete", "create"]))
        asked.append(operation)
        try:
            _ask(world, operation, stream_world.ranges)
        except (ConflictError, IllegalStateError, AlreadyExistsError):
            refused.append(operation)
    assert refused.count("create") + refused.count("delete") == asked.count("create") + asked.count("delete")
    world.bare_queue.acknowledge(message.receipt)
    world.drain()
    assert world.streams.get_stream("s", "t").epoch >= 1
    reached = {identifier: world.segments.successors("s", "t", identifier) for identifier in before}
    assert [one.segment.segment_id for one in reached[0].segments] == [1 << 32 | 2, 1 << 32 | 3]


def _ask(world: Any, operation: str, ranges: Any) -> None:
    if operation == "seal":
        world.streams.seal_stream("s", "t")
    elif operation == "scale":
        world.streams.scale_stream("s", "t", [1], ranges(0.5, 0.75, 1.0))
    elif operation == "same scale":
        world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    elif operation == "delete":
        world.streams.delete_stream("s", "t")
    else:
        world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)))

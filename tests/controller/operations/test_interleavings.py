"""Two processors work on one request, call by call in any order: both end, and the outcome is that of one."""

from __future__ import annotations

from typing import Any

import pytest
from accepted_requests import ACCEPT_ON_STREAM
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_world import StreamWorld, ranges
from turns import run_in_turns

from headrace.controller.engine import RequestProcessor
from headrace.model.errors import AlreadyExistsError, ConflictError, IllegalStateError
from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration


def _final(world: StreamWorld) -> tuple[Any, Any]:
    """Records without their versions: a second processor may write an equal record once more, and no other."""
    bodies = {key: body for key, (_, body) in world.everything().items()}
    infos = [world.bare_segment_stores.segment_info(name) for name in world.bare_segment_stores.names()]
    return bodies, infos


@pytest.mark.parametrize("kind", ACCEPT_ON_STREAM)
@given(order=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=40))
@settings(max_examples=40)
def test_two_processors_on_one_request(kind: RequestKind, order: list[int]):
    alone = StreamWorld()
    ACCEPT_ON_STREAM[kind](alone)
    alone.drain()
    world = StreamWorld()
    ACCEPT_ON_STREAM[kind](world)
    (message,) = world.bare_queue.receive()
    failures = run_in_turns(
        world.calls,
        lambda: RequestProcessor(world.tools()).process(message.body),
        order,
    )
    assert [error for error in failures if not isinstance(error, ConflictError)] == []
    assert len(failures) < 2, "one of them must get through"
    world.processor.process(message.body)
    assert _final(world) == _final(alone)


@given(data=st.data())
@settings(max_examples=60)
def test_operations_of_users_amid_a_workflow(data: st.DataObject):
    """Whatever users ask for while a scale runs step by step, they are refused or accepted, and nothing breaks."""
    world = StreamWorld()
    world.create(segments=2, tags=("a",))
    world.append(0, 3)
    world.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5))
    (message,) = world.bare_queue.receive()
    before = world.tail_ids()
    asked: list[str] = []
    refused: list[str] = []
    for _ in world.processor.work(message.body):
        operation = data.draw(st.sampled_from(["seal", "scale", "same scale", "delete", "create"]))
        asked.append(operation)
        try:
            _ask(world, operation)
        except (ConflictError, IllegalStateError, AlreadyExistsError):
            refused.append(operation)
    assert refused.count("create") + refused.count("delete") == asked.count("create") + asked.count("delete")
    world.bare_queue.acknowledge(message.receipt)
    world.drain()
    assert world.streams.get_stream("s", "t").epoch >= 1
    reached = {identifier: world.segments.successors("s", "t", identifier) for identifier in before}
    assert [segment.segment_id for segment in reached[0].segments] == [1 << 32 | 2, 1 << 32 | 3]


def _ask(world: StreamWorld, operation: str) -> None:
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

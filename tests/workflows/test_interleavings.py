"""Two processors work on one request, call by call in any order: both end, and the outcome is that of one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import AlreadyExistsError, ConflictError, IllegalStateError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.workflows.stream_requests import StreamRequestProcessor

STEPS_MAX = 400


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


class Turns:
    """Lets threads make their calls one at a time, in an order that a list of choices decides."""

    def __init__(self, order: list[int]) -> None:
        self._order = order
        self._condition = threading.Condition()
        self._waiting: set[int] = set()
        self._running = {0, 1}
        self._turn: int | None = None
        self._made = 0

    def wait(self, worker: int) -> None:
        with self._condition:
            self._waiting.add(worker)
            self._choose()
            self._condition.wait_for(lambda: self._turn == worker)
            self._waiting.discard(worker)
            self._turn = None

    def leave(self, worker: int) -> None:
        with self._condition:
            self._running.discard(worker)
            self._choose()

    def _choose(self) -> None:
        """Once everybody who still runs waits, the next choice decides who goes on."""
        if self._turn is None and self._waiting == self._running and self._waiting:
            wish = self._order[self._made % len(self._order)]
            self._made += 1
            assert self._made < STEPS_MAX, "the processors keep each other from ending"
            self._turn = wish if wish in self._waiting else next(iter(self._waiting))
            self._condition.notify_all()


def _run_two(world: Any, body: Any, order: list[int]) -> list[BaseException]:
    turns = Turns(order)
    workers: dict[int, int] = {}
    world.calls.before = lambda kind: turns.wait(workers[threading.get_ident()])

    def work(worker: int) -> None:
        workers[threading.get_ident()] = worker
        try:
            StreamRequestProcessor(world.store, world.segment_stores, world.clock).process(body)
        finally:
            turns.leave(worker)

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, worker) for worker in (0, 1)]
    failures = [error for error in (future.exception() for future in futures) if error is not None]
    world.calls.calm()
    return failures


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
    failures = _run_two(world, message.body, order)
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

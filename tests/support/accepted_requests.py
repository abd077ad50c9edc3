"""How an operation on a stream is accepted: one scenario for each kind, for tests that interrupt its steps.

Each scenario leaves exactly one message in the queue, which does all that is left of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stream_world import StreamWorld, ranges

from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration

Accept = Callable[[StreamWorld], object]


def _create(world: StreamWorld) -> None:
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(3), tags=("a", "b")))


def _scale(world: StreamWorld) -> None:
    world.create(segments=2, tags=("a",))
    world.append(0, 17)
    world.streams.scale_stream("s", "t", [0, 1], ranges(0.0, 0.2, 0.7, 1.0))


def _update(world: StreamWorld) -> None:
    world.create(segments=2, tags=("a", "b"))
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.by_event_rate(7, 2, 2), tags=("b", "c")))


def _truncate(world: StreamWorld) -> None:
    """After an earlier truncation: into one segment, over the end of two others."""
    world.create(segments=2)
    world.append(0, 10)
    world.append(1, 20)
    world.truncate({0: 4, 1: 0})
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1 << 32 | 2, 5)
    world.scale([1 << 32 | 2], [0.0, 0.1, 0.2])
    world.streams.truncate_stream("s", "t", {2 << 32 | 4: 0, 2 << 32 | 5: 0, 1 << 32 | 3: 0, 1: 6})


def _seal(world: StreamWorld) -> None:
    world.create(segments=2)
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1, 5)
    world.streams.seal_stream("s", "t")


def _freeze(world: StreamWorld) -> None:
    """With a transaction to abort, and one to commit into segments that a scale has replaced."""
    world.create(segments=2)
    world.append(1, 5)
    first, second = world.begin(), world.begin()
    world.write_in(first, 0.0, b"gone")
    world.write_in(second, 0.0, b"kept")
    world.scale([0], [0.0, 0.2, 0.5])
    world.transactions.commit_transaction("s", "t", second)
    world.streams.freeze_stream("s", "t")


def _unfreeze(world: StreamWorld) -> None:
    world.create(segments=2, tags=("a",))
    world.scale([0], [0.0, 0.2, 0.5])
    world.append(1, 5)
    world.streams.freeze_stream("s", "t")
    world.drain()
    world.streams.unfreeze_stream("s", "t")


def _delete(world: StreamWorld) -> None:
    world.create(segments=2, tags=("a", "b"))
    world.scale([0], [0.0, 0.2, 0.5])
    world.scale([1], [0.5, 1.0])
    world.seal()
    world.streams.delete_stream("s", "t")


ACCEPT_ON_STREAM: Mapping[RequestKind, Accept] = {
    RequestKind.CREATE_STREAM: _create,
    RequestKind.UPDATE_STREAM: _update,
    RequestKind.TRUNCATE_STREAM: _truncate,
    RequestKind.SCALE_STREAM: _scale,
    RequestKind.SEAL_STREAM: _seal,
    RequestKind.FREEZE_STREAM: _freeze,
    RequestKind.UNFREEZE_STREAM: _unfreeze,
    RequestKind.DELETE_STREAM: _delete,
}
"""All kinds but commits, which have messages of their own (`test_transaction_crashes.py`)."""

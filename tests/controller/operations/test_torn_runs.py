"""Two runs of commits that follow each other are never taken for one, though they have the same key and version."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.model.errors import ConflictError
from headrace.model.stream_state import StreamState


@pytest.mark.parametrize("seed", range(12))
def test_a_run_amid_the_next_one_is_not_ended(seed: int):
    """The batch read sees the first run and the stream amid the second one, which rolls."""
    world = StreamWorld(seed)
    world.create(segments=1)
    late = world.begin()
    world.write_in(late, 0.0, b"late")
    world.scale([0], [0.0, 1.0])
    early = world.begin()
    world.write_in(early, 0.0, b"early")
    for transaction in (early, late):
        world.transactions.commit_transaction("s", "t", transaction)
    message = world.bare_commits.receive()[0]
    _dies_at(world, "segment store merge_segments", message)

    def others_go_on() -> None:
        _dies_at(world, "segment store segment_infos", message)

    with world.calls.overtaken("between reads", by=others_go_on):
        try:
            world.commits.process(message.body)
        except ConflictError as error:
            raise AssertionError("what was read is read again") from error
    stream = world.records.get("s", "t").stream
    assert (stream.state, stream.epoch.number, stream.recorded_epoch) == (StreamState.ACTIVE, 3, 3)
    read = world.bare_segment_stores.read
    assert read("s/t/1.#epoch.1", 0, 99) + read("s/t/0.#epoch.2", 0, 99) == b"earlylate"


def _dies_at(world: StreamWorld, call: str, message: Any) -> None:
    world.calls.refuse(call, Crash())
    with pytest.raises(Crash):
        world.commits.process(message.body)
    world.calls.calm()

"""A scope is deleted while a commit runs on one of its streams, or has died on it."""

from __future__ import annotations

from typing import Any

import pytest
from interruptions import Work, after_each_crash
from soundness import assert_sound
from stream_world import StreamWorld

from headrace.model.errors import NotFoundError
from headrace.model.stream_state import StreamState


def _committing() -> StreamWorld:
    world = StreamWorld()
    world.create()
    identifier = world.begin()
    world.write_in(identifier, 0.2, b"event")
    world.transactions.commit_transaction("s", "t", identifier)
    (world.in_hand,) = world.bare_commits.receive()
    return world


def _outcome(world: StreamWorld) -> Any:
    return world.everything()


def test_a_scope_is_deleted_after_a_commit_crashed_anywhere():
    work = Work(_committing, lambda world: world.commits.process(world.in_hand.body), _outcome)
    amid = 0
    for _, world in after_each_crash(work, done=True):
        amid += world.records.get("s", "t").stream.state is StreamState.COMMITTING_TXN
        world.scope_deletions.delete_scope_recursively("s")
        world.drain()
        world.bare_commits.acknowledge(world.in_hand.receipt)
        with pytest.raises(NotFoundError):
            world.scopes.get_scope("s")
        assert world.bare_segment_stores.names() == []
        assert_sound(world)
    assert amid >= 2, "some of the crashes must leave a commit half done"

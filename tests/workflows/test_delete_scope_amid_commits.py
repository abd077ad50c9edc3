"""A scope is deleted while a commit runs on one of its streams, or has died on it."""

from __future__ import annotations

from typing import Any

import pytest
from soundness import assert_sound

from headrace.model.errors import NotFoundError
from headrace.model.stream_state import StreamState

CALLS_MAX = 60


def test_a_commit_that_died_anywhere_does_not_keep_a_scope_from_going(stream_world: Any):
    amid = 0
    for position in range(CALLS_MAX):
        world = stream_world.StreamWorld()
        world.create()
        identifier = world.begin()
        world.write_in(identifier, 0.2, b"event")
        world.transactions.commit_transaction("s", "t", identifier)
        (message,) = world.bare_commits.receive()
        world.calls.crash_at(position, done=True)
        try:
            world.commits.process(message.body)
            break
        except stream_world.Crash:
            amid += world.records.get("s", "t").stream.state is StreamState.COMMITTING_TXN
        finally:
            world.calls.calm()
        world.scope_deletions.delete_scope_recursively("s")
        world.drain()
        world.bare_commits.acknowledge(message.receipt)
        with pytest.raises(NotFoundError):
            world.scopes.get_scope("s")
        assert world.bare_segment_stores.names() == []
        assert_sound(world)
    assert amid >= 2, "some of the crashes must leave a commit half done"

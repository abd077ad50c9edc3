"""A store whose journal ends no commit says so in its lease, unless its logs would wait for its disk elsewhere, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from held_disk import HeldDisk
from replicated_world import LOG, ReplicatedWorld, append, numbered, opened, replicated_world, until

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.model.store_volume import STALLED_AFTER_S, TRUSTED_AFTER_S
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState
from segmentstore_fargate.replicated_logs import ReplicatedLogs

pytestmark = pytest.mark.anyio


async def _no_news() -> None:
    """No container is assigned again here."""


@dataclass
class StalledStore:
    """A store of a world, and what its lease says of its disk."""

    logs: ReplicatedLogs
    clock: ManualClock

    def is_stalled_after(self, seconds: float) -> bool:
        self.logs.status()
        self.clock.advance(int(1000 * seconds))
        return self.logs.status().stalled


@asynccontextmanager
async def stalled_store(world: ReplicatedWorld, name: str) -> AsyncIterator[StalledStore]:
    """A commit of this node has begun, and does not end in the block."""
    node, clock = world.nodes[name], ManualClock()
    ledger = await opened(world, "a")
    await append(ledger, *numbered(0, 5))
    await until(lambda: node.journal.commit_under_way is None)
    held = HeldDisk(node.disk)
    try:
        await append(ledger, b"acknowledged by the two others")
        await until(lambda: node.journal.commit_under_way is not None)
        logs = ReplicatedLogs(node.journal, MemoryMetadataStore(), clock, 4, lambda _container, _error: None, _no_news)
        logs.ledgers = node.ledgers
        yield StalledStore(logs, clock)
    finally:
        held.release()
    await until(lambda: node.journal.commit_under_way is None)


def streaming(world: ReplicatedWorld) -> int:
    writer = world.nodes["a"].ledgers.owned[LOG].machine
    assert isinstance(writer, LedgerWriter)
    return sum(state is MemberState.STREAMING for state in writer.member_states().values())


async def test_owner_on_a_stalled_disk_says_so(caplog: pytest.LogCaptureFixture):
    async with replicated_world() as world:
        async with stalled_store(world, "a") as store:
            assert not store.is_stalled_after(STALLED_AFTER_S - 0.1)
            assert store.is_stalled_after(0.1)
            assert not store.logs.status().may_own
            assert "event=disk_stall stalled=True commit_s=10.0" in caplog.text
        assert store.is_stalled_after(TRUSTED_AFTER_S - 0.1)
        assert not store.is_stalled_after(0.1)
        assert "event=disk_stall stalled=False commit_s=0.0" in caplog.text


async def test_member_on_a_stalled_disk_says_so():
    """It owns nothing, and should not be chosen as an owner."""
    async with replicated_world() as world, stalled_store(world, "b") as store:
        assert store.is_stalled_after(STALLED_AFTER_S)


async def test_owner_that_the_others_need_keeps_its_containers():
    """With one other member a new owner would wait for this disk, too."""
    async with replicated_world() as world, stalled_store(world, "a") as store:
        await world.stop(world.nodes["c"])
        await until(lambda: streaming(world) < 3)
        assert not store.is_stalled_after(STALLED_AFTER_S)

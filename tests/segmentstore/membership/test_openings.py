"""Each container is opened by itself: what fails is repeated, what is damaged is set apart, the others are served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_members import CONTAINERS, GRACE_MS, SEGMENT, Member, content, lease, look, member, write
from store_world import World

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.metadata.cluster_records import (
    ClusterRecords,
    claim_sort,
    decode_snapshot_pointer,
    lease_key,
    snapshot_sort,
)
from headrace.model import containers
from headrace.model.cluster import UNSERVED_MAX_MS, StoreState
from headrace.model.containers import CLUSTER_PARTITION, OpeningStep
from headrace.model.errors import CorruptError, ThrottledError, UnavailableError
from headrace.model.names import container_of_segment
from headrace.ports.metadata_store import Create, Delete, Key
from headrace.segmentstore.periodic_task import Rest
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate import membership
from segmentstore_fargate.membership import Membership

pytestmark = pytest.mark.anyio

CONTAINER = container_of_segment(SEGMENT, CONTAINERS)
OTHERS = [each for each in range(CONTAINERS) if each != CONTAINER]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_FIRST_S", "RETRY_MAX_S", "QUARANTINE_RETRY_S"):
        monkeypatch.setattr(containers, name, 0.001)


def epoch(world: World, container: int = CONTAINER) -> int:
    record = world.metadata.get(Key(CLUSTER_PARTITION, claim_sort(container)))
    return int(record.version)


def snapshot_object(world: World, container: int = CONTAINER) -> str:
    record = world.metadata.get(Key(CLUSTER_PARTITION, snapshot_sort(container)))
    return decode_snapshot_pointer(record.body).object_name


async def in_tier_2(world: World) -> None:
    """All containers are in tier 2, with one event, and belong to a store that has left."""
    async with member(world, "a", range(CONTAINERS)) as a:
        await write(a.running, b"kept")


async def test_failed_request_is_retried_under_the_same_claim(world: World):
    await in_tier_2(world)
    claimed, honest, refused = epoch(world), world.chunks.read, []

    async def failing(name, position, length):
        if len(refused) < 3 and name == snapshot_object(world):
            refused.append(name)
            raise ThrottledError("slow down")
        return await honest(name, position, length)

    world.chunks.read = failing
    async with member(world, "a") as a:
        await a.serves(0, 1, 2, 3)
        assert await content(a.running) == b"kept"
        assert not a.fatal
        assert len(refused) == 3
        assert epoch(world) == claimed + 1, "claimed once"


async def test_failed_step_is_retried_and_the_log_is_read_again(world: World, monkeypatch):
    from headrace.segmentstore.owned_container import ContainerOpening

    done: list[OpeningStep] = []
    honest = ContainerOpening.advance

    async def failing(self):
        """Each step fails once, after it was done."""
        step = self.progress.step
        before = self.progress
        await honest(self)
        if self.container == CONTAINER:
            done.append(step)
            if done.count(step) == 1:
                self.progress = before
                raise UnavailableError("the answer was lost")

    await in_tier_2(world)
    monkeypatch.setattr(ContainerOpening, "advance", failing)
    claimed = epoch(world)
    async with member(world, "a") as a:
        await a.serves(0, 1, 2, 3)
        assert await content(a.running) == b"kept"
        await write(a.running, b"more")
        assert epoch(world) == claimed + 1
    ledger, restore, checkpoint = OpeningStep.LEDGER, OpeningStep.RESTORE, OpeningStep.CHECKPOINT
    assert done == [ledger, ledger, restore, restore, checkpoint, ledger, restore, checkpoint]
    async with member(world, "a") as a:
        await a.serves(0, 1, 2, 3)
        assert await content(a.running) == b"keptmore"


async def test_damaged_container_is_quarantined_and_others_served(world: World, caplog):
    await in_tier_2(world)
    name = snapshot_object(world)
    kept = world.chunks._objects.pop(name)
    async with member(world, "a") as a:
        await a.serves(*OTHERS)
        opening = a.running.store.openings[CONTAINER]
        await a.running.until(lambda: opening.progress.failures.get(OpeningStep.RESTORE, 0) >= 2)
        assert opening.progress.quarantined
        assert a.membership.missing == [CONTAINER]
        assert not a.fatal
        world.chunks._objects[name] = kept
        await a.serves(0, 1, 2, 3)
        assert await content(a.running) == b"kept"
    assert f"event=container_quarantined container={CONTAINER}" in caplog.text


async def test_waiting_for_a_container_reads_no_lease_again(world: World):
    """The store looks twice a second while a container that it should serve is damaged."""
    await in_tier_2(world)
    world.chunks._objects.pop(snapshot_object(world, 0))
    async with member(world, "a") as a, member(world, "b") as b:
        await a.serves(1, 2, 3)
        known = world.metadata.get(lease_key("b"))
        world.metadata.write(Delete(known.key, None))
        reads, looked = a.metadata.calls["get"], a.membership._settling._run_pass
        passes: list[int] = []

        async def look_again() -> Rest | None:
            passes.append(a.metadata.calls["get"] - reads)
            return await looked()

        a.membership._settling._run_pass = look_again
        await a.beat()
        await a.running.until(lambda: sum(passes) > 10)  # some passes after the first read
        assert a.membership.missing == [0]
        assert passes[-1] == 1, "of the store that takes over containers"
        world.metadata.write(Create(known.key, known.body, known.version))
        await a.beat()
        await a.serves(1)
        await b.beat()
        await b.serves(2, 3)


async def test_hanging_container_does_not_delay_the_others(world: World):
    await in_tier_2(world)
    honest, asked, answered = world.chunks.read, asyncio.Event(), asyncio.Event()

    async def silent(name, position, length):
        if name == snapshot_object(world):
            asked.set()
            await answered.wait()
        return await honest(name, position, length)

    async def joined() -> None:
        async with member(world, "a") as a:
            members.append(a)
            await a.serves(0, 1, 2, 3)

    members: list[Any] = []
    stores: list[Any] = []
    join = Membership.join

    async def noted(self: Membership) -> None:
        stores.append(self._store)
        await join(self)

    world.chunks.read = silent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "join", noted)
        joining = asyncio.ensure_future(joined())
        await asked.wait()
        while sorted(stores[0].owned) != OTHERS:
            await asyncio.sleep(0.001)
        assert not members, "its first attempt is waited for"
        answered.set()
        await joining


async def test_stopped_container_is_reopened_in_the_same_process(world: World):
    """With everything that was acknowledged, also what only its log has."""

    async with member(world, "a", range(CONTAINERS)) as a:
        await write(a.running, b"one", b"two")
        stopped = a.running.store.owned[CONTAINER].container
        stopped.log.fail(CorruptError("a contradiction"))
        a.membership.container_failed(CONTAINER, CorruptError("a contradiction"))
        assert a.containers == OTHERS
        await a.serves(0, 1, 2, 3)
        assert a.running.store.owned[CONTAINER].container is not stopped
        assert await content(a.running) == b"onetwo"
        await write(a.running, b"three")
        assert await content(a.running) == b"onetwothree"
        assert not a.fatal


async def test_a_hand_over_that_fails_is_repeated_in_the_same_process(world: World, monkeypatch, caplog):
    async with member(world, "a", range(CONTAINERS)) as a:
        await write(a.running, b"one")
        monkeypatch.setattr(membership, "DEADLINE_S", 0.05)
        honest, refused = world.chunks.put, []

        async def away(name, parts):
            refused.append(name)
            raise UnavailableError("not now")

        world.chunks.put = away
        async with member(world, "b") as b:
            await a.beat()
            await a.running.until(lambda: caplog.text.count("event=hand_over_put_off") == 2)
            assert a.containers == [0, 1, 2, 3]
            assert epoch(world, 2) == epoch(world, 3) == 0, "they were served all the time"
            monkeypatch.setattr(membership, "DEADLINE_S", 20)
            world.chunks.put = honest
            world.clock.advance(membership.RETRY_FIRST_S)
            await a.beat()
            await b.beat()
            await b.serves(2, 3)
            await a.serves(0, 1)
            assert refused
            assert not a.fatal
            await a.beat()


async def test_container_is_served_between_failed_hand_over_attempts(world: World, monkeypatch):
    """While S3 is away it would be without a store otherwise: each attempt takes as long as its deadline."""
    attempts: list[int] = []
    honest = SegmentStore.hand_over

    async def failing(self: SegmentStore, container: int, _deadline_s: float) -> bool:
        attempts.append(container)
        return await honest(self, container, 0.0)

    async def attempted(a: Member, count: int) -> None:
        """Look at the map often; the moved containers are handed over so often, and served again."""
        await a.beat()
        for _ in range(3):
            await a.membership._settle_once()
            await a.running.until(lambda: len(attempts) >= 2 * count)
            await a.serves(0, 1, 2, 3)
        assert sorted(attempts) == sorted([2, 3] * count)

    async with member(world, "a", range(CONTAINERS)) as a:
        await write(a.running, b"one")
        monkeypatch.setattr(SegmentStore, "hand_over", failing)
        async with member(world, "b", graceful=False) as b:
            await a.beat()
            await attempted(a, 1)
            for failures, pause_s in enumerate((60, 120, 240, 480, 600, 600), 1):
                world.clock.advance(pause_s - 1)
                await attempted(a, failures)
                world.clock.advance(1)
                await attempted(a, failures + 1)
            assert await content(a.running) == b"one"
            assert b.containers == []


async def lapse(world: World, a: Member) -> None:
    """Time passes in which the store renews its lease as long as it may."""
    for _ in range(2 * UNSERVED_MAX_MS // 9_000):
        world.clock.advance(9)
        try:
            await a.beat()
        except UnavailableError:
            return
    raise AssertionError("the lease was kept")


async def test_a_store_that_serves_nothing_lets_others_take_over(world: World):
    await in_tier_2(world)
    honest = world.chunks.read

    async def damaged(*_: object) -> bytes:
        raise CorruptError("damaged")

    world.chunks.read = damaged
    async with member(world, "a", graceful=False) as a:
        assert a.containers == []
        await lapse(world, a)
        assert not a.running.store.gate.is_open
        world.clock.advance(13)
        assert look(world).newly_lost == ("a",)
        with pytest.raises(UnavailableError, match="served nothing"):
            await a.beat()
        assert lease(world, "a").lease.state is StoreState.LOST
    world.chunks.read = honest
    async with member(world, "b") as b:
        await b.serves(0, 1, 2, 3)
        assert await content(b.running) == b"kept"


async def test_superseded_store_keeps_its_gate_closed_without_a_lease(world: World, monkeypatch):
    """The tick that ended its lease came late: others may still take over when the store thinks that they had time."""
    from headrace.segmentstore.owned_container import ContainerOpening

    async def damaged(self):
        raise CorruptError("damaged")

    disk, honest = MemoryJournalDisk(), ContainerOpening.advance
    async with member(world, "a", range(CONTAINERS), disk=disk, graceful=False) as a:
        await write(a.running, b"one")
    monkeypatch.setattr(ContainerOpening, "advance", damaged)
    async with member(world, "a", disk=disk, graceful=False) as a:
        await lapse(world, a)
        world.clock.advance(100)
        assert look(world).newly_lost == ("a",)
        world.clock.advance(GRACE_MS / 1000 + 1)
        with pytest.raises(UnavailableError, match="served nothing"):
            await a.beat()
        monkeypatch.setattr(ContainerOpening, "advance", honest)
        await a.running.until(lambda: CONTAINER in a.containers)
        assert lease(world, "a").lease.state is StoreState.LOST
        assert not a.running.store.gate.is_open
        await a.beat()
        assert lease(world, "a").lease.state is StoreState.SERVING
        assert a.running.store.gate.is_open
        assert await content(a.running) == b"one"


async def test_a_store_that_has_nothing_to_open_keeps_its_lease(world: World):
    async with member(world, "a", range(CONTAINERS)) as a, member(world, "b") as b:
        b.running.store.gate.close()
        for _ in range(2 * UNSERVED_MAX_MS // 9_000):
            world.clock.advance(9)
            await b.beat()
        assert b.containers == []
        assert lease(world, "b").lease.unserved_since_ms is None
        await a.membership.heartbeat.beat()


def held_by(world: World, container: int = CONTAINER) -> str | None:
    (state,) = ClusterRecords(world.metadata).containers([container])
    return None if state.hold is None else state.hold.store_id


@pytest.mark.parametrize("same_disk", [True, False])
async def test_what_a_store_is_about_to_serve_is_its_own(world: World, same_disk):
    """After a clean shutdown tier 2 has everything, until the container is served again: from its log, or without."""

    disk = MemoryJournalDisk()
    async with member(world, "a", range(CONTAINERS), disk=disk) as a:
        await write(a.running, b"one")
    assert held_by(world) is None
    async with member(world, "a", disk=disk if same_disk else None, graceful=False) as a:
        await a.serves(0, 1, 2, 3)
        assert held_by(world) == "a"
        await write(a.running, b"two")
    assert held_by(world) == "a"


async def test_a_store_that_dies_before_it_restores_keeps_no_container(world: World, monkeypatch):
    from headrace.segmentstore.owned_container import ContainerOpening

    await in_tier_2(world)
    honest, claimed = ContainerOpening.advance, asyncio.Event()

    async def dies(self):
        claimed.set()
        raise UnavailableError("it dies here")

    monkeypatch.setattr(ContainerOpening, "advance", dies)
    async with member(world, "b", graceful=False) as b:
        await claimed.wait()
        assert b.containers == []
    assert epoch(world) == 1
    monkeypatch.setattr(ContainerOpening, "advance", honest)
    async with member(world, "a") as a:
        world.clock.advance(13)
        await a.beat()
        assert look(world).newly_lost == ("b",)
        await a.beat()
        await a.serves(0, 1, 2, 3)
        assert await content(a.running) == b"kept"

"""A store that is stopped while it opens containers: what it has claimed may be needed, so it is opened and flushed."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest
from cluster_members import CONTAINERS, SEGMENT, Member, content, member, write
from store_world import WAIT_S, World

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.metadata.cluster_records import ClusterRecords, claim_key
from headrace.model import containers
from headrace.model.containers import OpeningStep
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.names import container_of_segment
from headrace.ports.metadata_store import Key, Write
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.owned_container import ContainerOpening
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.membership import Membership
from segmentstore_fargate.openings import ContainerOpenings

pytestmark = pytest.mark.anyio

CONTAINER = container_of_segment(SEGMENT, CONTAINERS)
OTHERS = [each for each in range(CONTAINERS) if each != CONTAINER]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_FIRST_S", "RETRY_MAX_S"):
        monkeypatch.setattr(containers, name, 0.001)


class Obstacle:
    """Lets one step of the opening of the container fail, until the store finishes its openings."""

    def __init__(self) -> None:
        self.step: OpeningStep | None = None
        self.error: Exception = UnavailableError("not now")

    async def advance(self, opening: ContainerOpening) -> None:
        if opening.container == CONTAINER and opening.progress.step is self.step:
            raise self.error
        await _ADVANCE(opening)

    async def finish(self, membership: Membership, patience_s: float) -> None:
        if patience_s:
            self.step = None
        await _FINISH(membership, patience_s)


_ADVANCE, _FINISH = ContainerOpening.advance, Membership.finish_openings


@pytest.fixture
def obstacle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Obstacle]:
    made = Obstacle()
    monkeypatch.setattr(ContainerOpening, "advance", lambda opening: made.advance(opening))
    monkeypatch.setattr(
        Membership, "finish_openings", lambda membership, patience_s: made.finish(membership, patience_s)
    )
    return made


def held(world: World) -> list[int]:
    """Containers of which a log is needed."""
    return [each.container for each in ClusterRecords(world.metadata).containers(range(CONTAINERS)) if each.hold]


async def opens_in_vain(a: Member) -> ContainerOpening:
    """The opening of the container, once its step has failed and the others are served."""
    await a.serves(*OTHERS)
    opening = a.running.store.openings[CONTAINER]
    await a.running.until(lambda: bool(opening.progress.failures))
    return opening


@pytest.mark.parametrize("step", [OpeningStep.LEDGER, OpeningStep.RESTORE, OpeningStep.CHECKPOINT])
@pytest.mark.parametrize("is_first", [True, False])
async def test_stop_leaves_no_log_of_what_it_was_opening(world: World, obstacle, step, is_first):
    """The log is empty, but other stores would wait for it."""
    if not is_first:
        async with member(world, "a", range(CONTAINERS)) as a:
            await write(a.running, b"kept")
    obstacle.step = step
    async with member(world, "b", range(CONTAINERS)) as b:
        await opens_in_vain(b)
    assert held(world) == []
    async with member(world, "c") as c:
        await c.serves(*range(CONTAINERS))
        if not is_first:
            assert await content(c.running) == b"kept"


async def test_stop_flushes_a_log_that_was_being_recovered(world: World, obstacle):
    """Its only copy is deleted with the volume of the task."""
    disk = MemoryJournalDisk()
    async with member(world, "a", range(CONTAINERS), disk=disk, graceful=False) as a:
        await write(a.running, b"one", b"two")
    obstacle.step = OpeningStep.RESTORE
    async with member(world, "a", range(CONTAINERS), disk=disk) as a:
        await opens_in_vain(a)
    assert held(world) == []
    async with member(world, "b") as b:
        await b.serves(*range(CONTAINERS))
        assert await content(b.running) == b"onetwo"


async def test_stop_waits_for_openings_for_a_bounded_time(world: World, obstacle):
    obstacle.step = OpeningStep.RESTORE
    async with member(world, "a", range(CONTAINERS), openings_s=0) as a:
        await opens_in_vain(a)
    assert held(world) == [CONTAINER]
    assert not a.running.store.openings


async def test_stop_does_not_wait_for_damaged_containers(world: World, obstacle, monkeypatch):
    monkeypatch.setattr(Membership, "finish_openings", _FINISH)
    obstacle.step, obstacle.error = OpeningStep.LEDGER, CorruptError("damaged")
    async with asyncio.timeout(WAIT_S):
        async with member(world, "a", range(CONTAINERS), openings_s=1e6) as a:
            assert (await opens_in_vain(a)).progress.quarantined


async def test_stop_claims_no_further_container(world: World, monkeypatch):
    """An opening without a claim has changed nothing: it ends."""
    claims: list[object] = []

    async def refused(self: Membership, seen: object) -> int | None:
        claims.append(seen)
        raise UnavailableError("not now")

    monkeypatch.setattr(containers, "RETRY_FIRST_S", 1e6)
    monkeypatch.setattr(containers, "RETRY_MAX_S", 1e6)
    monkeypatch.setattr(Membership, "_claim", refused)
    async with asyncio.timeout(WAIT_S):
        async with member(world, "a", range(CONTAINERS), openings_s=1e6) as a:
            assert len(a.running.store.openings) == len(claims) == CONTAINERS
    assert len(claims) == CONTAINERS


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after some failures in an outage."""
    for name in ("RETRY_FIRST_S", "RETRY_MAX_S"):
        monkeypatch.setattr(containers, name, 1e6)


def lose_answers_of_claims(world: World, monkeypatch: pytest.MonkeyPatch, is_written: bool) -> set[Key]:
    """Let the first claim of each container have no answer; returns the keys of these claims."""
    honest, lost = world.metadata.write, set[Key]()
    claims = {claim_key(each) for each in range(CONTAINERS)}

    def write(*writes: Write) -> None:
        key = writes[0].key
        if key not in claims or key in lost:
            honest(*writes)
            return
        lost.add(key)
        if is_written:
            honest(*writes)
        raise UnavailableError("no answer")

    monkeypatch.setattr(world.metadata, "write", write)
    return lost


@pytest.mark.parametrize("is_written", [True, False])
async def test_stop_finds_out_whether_a_claim_was_written(world: World, monkeypatch, long_pauses, is_written: bool):
    """If it was, the container is this store's: others would wait for its log, which is empty."""
    async with asyncio.timeout(WAIT_S):
        lost = lose_answers_of_claims(world, monkeypatch, is_written)
        async with member(world, "b", range(CONTAINERS), openings_s=1e6) as b:
            assert len(b.running.store.openings) == len(lost) == CONTAINERS
        assert held(world) == []
        async with member(world, "c") as c:
            await c.serves(*range(CONTAINERS))


async def test_stop_repeats_the_failed_step_at_once(world: World, obstacle, long_pauses):
    obstacle.step = OpeningStep.RESTORE
    async with asyncio.timeout(WAIT_S):
        async with member(world, "a", range(CONTAINERS), openings_s=1e6) as a:
            await opens_in_vain(a)
    assert held(world) == []


def test_openings_may_be_dropped_with_their_loop(make_world: type[World], monkeypatch):
    """A process whose journal has failed ends without a shutdown, and says nothing about its coroutines."""
    world = make_world(container_count=CONTAINERS)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def begin() -> ContainerOpenings:
        journal = Journal(world.disk, lambda: 1, asyncio.get_running_loop().call_soon_threadsafe)
        ledgers = OneCopyLedgerStore(journal)
        store = SegmentStore(ledgers, 8 << 20, world.clock, world.metadata, world.chunks, container_count=CONTAINERS)
        openings = ContainerOpenings(store, world.clock, never, never, lambda: None, lambda _: None)
        for state in ClusterRecords(world.metadata).containers(range(CONTAINERS)):
            openings.begin(state)
        await asyncio.sleep(0)
        return openings

    gc.collect()
    ignored: list[str] = []  # with the coroutine of an undo that no loop can run
    monkeypatch.setattr(sys, "unraisablehook", lambda each: ignored.append(f"{each.object}: {each.exc_value!r}"))
    loop = asyncio.new_event_loop()
    openings = loop.run_until_complete(begin())
    loop.close()
    del openings, loop
    gc.collect()
    assert ignored == []

"""Object ledgers: how entries are gathered, and what happens when PUTs fail, are late, or meet a newer owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from ledger_worlds import LogRecordsInline, Reports, claim_container, read_back
from object_worlds import CONTAINER, LIMITS, World, failures, turns
from unreliable_chunks import Fate

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.log_objects import LOG_OBJECT_OVERHEAD_BYTES
from headrace.metadata.container_log import NO_VERSION, LogWriteOutcome, StoredLog
from headrace.model.container_logs import ContainerLog, LogState, ReplicaId, emptied, open_ledger
from headrace.model.errors import CorruptError, FencedError, HeadraceError, IllegalStateError, UnavailableError
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits
from headrace.segmentstore.log.objects.object_ledgers import ObjectLedger

pytestmark = pytest.mark.anyio


async def test_entries_of_one_turn_share_an_object():
    world, reports = World(), Reports()
    ledger = await world.open()
    reports.append(ledger, b"one", b"two", b"three")
    await reports.all()
    reports.append(ledger, b"four")
    await reports.all()
    assert await world.names() == ["0-0", "0-1"]


async def test_full_objects_do_not_wait_for_the_interval():
    world, reports = World(ObjectLogLimits(gather_s=1e6, object_bytes=1000)), Reports()
    ledger = await world.open()
    reports.append(ledger, b"first, which waits for nothing")
    await reports.all()
    reports.append(ledger, *[bytes(400) for _ in range(5)])
    await turns()
    # Two entries fit into an object. The last one waits: an object is put every 1e6 s.
    assert [entry for entry, _ in reports.outcomes] == [0, 1, 2, 3, 4]
    assert ledger.held_bytes > 5 * 400
    await ledger.settle()
    assert await reports.all() == [(entry, None) for entry in range(6)]
    assert await world.names() == ["0-0", "0-1", "0-2", "0-3"]


@pytest.mark.parametrize(("missing_bytes", "is_put"), [(0, True), (1, False)])
async def test_object_is_full_with_its_last_byte(missing_bytes: int, is_put: bool):
    limits = ObjectLogLimits(gather_s=1e6, object_bytes=2 * (400 + LOG_OBJECT_OVERHEAD_BYTES))
    world, reports = World(limits), Reports()
    ledger = await world.open()
    reports.append(ledger, b"first, which waits for nothing")
    await reports.all()
    reports.append(ledger, bytes(400), bytes(400 - missing_bytes))
    await turns()
    assert await world.names() == ["0-0", "0-1"] if is_put else ["0-0"]
    await ledger.settle()


async def test_end_of_a_ledger_tells_its_truncation_point():
    """Otherwise the next owner would read entries whose objects may have been deleted."""
    world, reports = World(), Reports()
    store = world.start()
    ledger = await store.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    for number in range(3):
        reports.append(ledger, b"%d" % number)
        await reports.all()
    ledger.truncate(2)
    assert await world.names() == ["0-0", "0-1", "0-2"], "no later object tells it"
    await store.release(CONTAINER)
    assert await world.names() == ["0-2", "0-3"]
    new = await world.open()
    assert await read_back(new) == {2: b"2"}
    assert new.next_entry == 3
    before = await world.names()
    await new.settle()
    assert await world.names() == before, "there is nothing new to tell"


async def test_each_object_that_is_not_needed_is_deleted_once():
    world, reports = World(), Reports()
    ledger = await world.open()
    world.chunks.turns = lambda: 3
    for number in range(5):
        reports.append(ledger, b"%d" % number)
        await reports.all()
        ledger.truncate(number)
        ledger.truncate(number - 1)
    await ledger.settle()
    assert await world.names() == ["0-4", "0-5"], "no deletion is under way"
    assert len(world.chunks.deleted) == len(set(world.chunks.deleted)) == 4
    state = ledger.as_found()
    assert state is not None
    assert (state.truncated_before, state.next_entry) == (4, 5), "the point never moves back"


async def test_failed_ledger_puts_nothing_at_its_end():
    world, reports = World(), Reports()
    ledger = await world.open()
    reports.append(ledger, b"entry")
    await reports.all()
    ledger.truncate(1)
    await world.open()
    reports.append(ledger, b"never acknowledged")
    assert failures(await reports.all()) == [None, FencedError]
    puts = len(world.chunks.puts)
    await ledger.settle()
    assert len(world.chunks.puts) == puts


async def test_ledger_is_known_once_all_its_puts_are():
    world, reports = World(), Reports()
    ledger = await world.open()
    world.fates = [Fate.HELD]
    reports.append(ledger, b"entry")
    assert ledger.as_found() is None, "it waits for its PUT"
    await turns()
    assert (world.chunks.puts[-1][-1], ledger.as_found()) == ("0", None)
    world.chunks.let_arrive()
    await ledger.settle()
    state = ledger.as_found()
    assert state is not None
    assert state.next_entry == 1


async def test_later_object_is_reported_after_an_earlier_one():
    world, reports = World(ObjectLogLimits(gather_s=0.0, object_bytes=100)), Reports()
    ledger = await world.open()
    world.fates = [Fate.HELD]
    reports.append(ledger, *[bytes(100) for _ in range(9)])
    await turns()
    # Four objects may be in flight, also if three of them are durable.
    assert (len(world.chunks.puts), reports.outcomes) == (4, [])
    world.chunks.let_arrive()
    assert await reports.all() == [(entry, None) for entry in range(9)]


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.CONFLICT, Fate.UNAVAILABLE])
async def test_failed_put_is_repeated_until_it_succeeds(fate: Fate, caplog: pytest.LogCaptureFixture):
    world, reports = World(), Reports()
    ledger = await world.open()
    world.fates = [fate] * 5
    reports.append(ledger, b"entry")
    assert await reports.all() == [(0, None)]
    assert ("event=log_put_failed" in caplog.text) == (fate is not Fate.ANSWER_LOST)
    world.fates = []
    assert await read_back(await world.open()) == {0: b"entry"}


async def test_attempt_that_arrives_after_its_repetition_is_harmless():
    world, reports = World(), Reports()
    ledger = await world.open()
    world.fates = [Fate.LATE]
    reports.append(ledger, b"entry")
    await reports.all()
    reports.append(ledger, b"next")
    await reports.all()
    ledger.truncate(1)
    reports.append(ledger, b"carries the truncation point")
    await reports.all()
    await turns()
    assert await world.names() == ["0-1", "0-2"]
    await world.chunks.deliver()
    assert await world.names() == ["0-0", "0-1", "0-2"]
    assert list(await read_back(await world.open())) == [1, 2]


async def test_contradiction_fails_the_log():
    world, reports = World(), Reports()
    ledger = await world.open()

    def contradict(_name: str) -> Fate:
        raise CorruptError("the object cannot be there")

    world.chunks.fate = contradict
    reports.append(ledger, b"entry")
    assert failures(await reports.all()) == [CorruptError]
    assert reports.released == [0]
    with pytest.raises(CorruptError):
        ledger.append([b"more"], lambda _error: None)


async def test_refused_request_is_repeated():
    """An operator may remove the cause: a refusal by tier 2 ends no container."""
    world, reports = World(), Reports()
    ledger = await world.open()
    refusals = iter([HeadraceError("no storage accepts this request")])
    accept = world.chunks.fate

    def refuse_once(name: str) -> Fate:
        for refusal in refusals:
            raise refusal
        return accept(name)

    world.chunks.fate = refuse_once
    reports.append(ledger, b"entry")
    assert failures(await reports.all()) == [None]


async def test_former_owner_collides_with_the_tombstone():
    world, reports = World(), Reports()
    old = await world.open()
    reports.append(old, b"acknowledged")
    await reports.all()
    new = await world.open()
    assert await world.names() == ["0-0", "0-1x"]
    reports.append(old, b"never acknowledged")
    assert failures(await reports.all()) == [None, FencedError]
    assert sorted(reports.released) == [0, 1]
    with pytest.raises(FencedError):
        old.append([b"more"], lambda _error: None)
    with pytest.raises(FencedError):
        old.truncate(1)
    assert await read_back(new) == {0: b"acknowledged"}
    assert (await world.log()).ledgers == ((0, 0), (1, 1))


async def test_writer_paused_for_days_acknowledges_nothing():
    """Its PUTs arrive after its objects were truncated, and after two other owners."""
    world, reports, later = World(ObjectLogLimits(gather_s=0.0, object_bytes=100)), Reports(), Reports()
    old = await world.open()
    reports.append(old, b"acknowledged")
    await reports.all()
    world.fates = [Fate.HELD, Fate.HELD]
    reports.append(old, bytes(100), bytes(100))
    await turns()
    second = await world.open()
    for number in range(5):
        later.append(second, b"%d" % number)
        await later.all()
    second.truncate(4)
    later.append(second, b"carries the truncation point")
    await later.all()
    third = await world.open()
    # Nothing of the first owner is left but its tombstone.
    assert await world.names() == ["0-1x", "1-3", "1-4", "1-5", "1-6x"]
    world.chunks.let_arrive()
    world.chunks.let_arrive()
    await turns()
    assert failures(await reports.all()) == [None, FencedError, FencedError]
    assert await read_back(third) == {4: b"3", 5: b"4", 6: b"carries the truncation point"}
    assert await read_back(await world.open()) == await read_back(third)


async def test_of_two_owners_that_race_one_wins():
    world, reports = World(), Reports()
    old = await world.open()
    reports.append(old, b"entry")
    await reports.all()
    epochs = [claim_container(world.metadata, CONTAINER) for _ in range(2)]
    opened = await asyncio.gather(*(world.start().open(CONTAINER, epoch) for epoch in epochs), return_exceptions=True)
    assert isinstance(opened[0], FencedError)
    assert isinstance(opened[1], ObjectLedger)
    assert await read_back(opened[1]) == {0: b"entry"}


async def test_owner_that_appends_during_the_takeover_wins_the_race():
    """Its object is at the place of the tombstone: the takeover reads it, and puts the tombstone behind it."""
    world, reports = World(), Reports()
    old = await world.open()
    world.fates = [Fate.HELD]
    reports.append(old, b"entry")
    await turns()
    world.fates = [Fate.HELD]
    taking_over = asyncio.ensure_future(world.open())
    await turns()
    world.chunks.let_arrive()
    await reports.all()
    world.chunks.let_arrive()
    new = await taking_over
    assert reports.outcomes == [(0, None)]
    assert await read_back(new) == {0: b"entry"}
    assert await world.names() == ["0-0", "0-1x"]


async def test_tombstone_in_the_truncated_part_closes_nothing():
    """While the tombstone is under way, the owner writes and truncates beyond its place."""
    world, reports = World(), Reports()
    old = await world.open()
    reports.append(old, b"0")
    await reports.all()
    world.fates = [Fate.HELD]
    taking_over = asyncio.ensure_future(world.open())
    await turns()
    for number in range(1, 4):
        reports.append(old, b"%d" % number)
        await reports.all()
    old.truncate(3)
    reports.append(old, b"4")
    await reports.all()
    await turns()
    assert await world.names() == ["0-3", "0-4"]
    world.chunks.let_arrive()
    new = await taking_over
    assert await read_back(new) == {3: b"3", 4: b"4"}
    assert "0-1x" in await world.names()
    assert "0-5x" in await world.names()


async def test_takeover_that_stopped_behind_its_tombstone_is_repeated():
    world, reports = World(), Reports()
    old = await world.open()
    reports.append(old, b"entry")
    await reports.all()
    world.fates = [Fate.ANSWER_LOST]
    with pytest.raises(UnavailableError):
        await world.open()
    assert (await world.log()).ledgers == ((0, 0),)
    assert await read_back(await world.open()) == {0: b"entry"}
    assert (await world.log()).ledgers == ((0, 0), (2, 1))


class RecordsThatLoseAnswers(LogRecordsInline):
    """`lost` writes take effect and are reported as unknown."""

    lost = 0

    async def write(self, container: int, log: ContainerLog, version: int, claim_epoch: int) -> LogWriteOutcome:
        outcome = await super().write(container, log, version, claim_epoch)
        if self.lost:
            self.lost -= 1
            return LogWriteOutcome.UNKNOWN
        return outcome


async def test_lost_answer_to_the_record_is_found_out():
    world, reports = World(), Reports()
    world.records = records = RecordsThatLoseAnswers(world.metadata)
    for number in range(3):
        records.lost = 1
        ledger = await world.open()
        assert await read_back(ledger) == {each: b"%d" % each for each in range(number)}
        reports.append(ledger, b"%d" % number)
        await reports.all()
    assert reports.outcomes == [(0, None), (1, None), (2, None)]


async def test_ledger_with_unknown_puts_is_not_opened_again():
    """Another entry could get the place of one that arrives later. An owner with a new epoch closes the ledger."""
    world, reports = World(), Reports()
    store, epoch = world.start(), claim_container(world.metadata, CONTAINER)
    ledger = await store.open(CONTAINER, epoch)
    world.chunks.fate = lambda _name: Fate.LATE
    reports.append(ledger, b"late")
    await turns(1)
    await store.release(CONTAINER)
    assert failures(await reports.all()) == [UnavailableError]
    assert reports.released == [0]
    world.chunks.fate = lambda _name: Fate.DONE
    with pytest.raises(FencedError, match="epoch 0"):
        await store.open(CONTAINER, epoch)
    await world.chunks.deliver()
    assert await read_back(await world.open()) == {0: b"late"}


async def test_shutdown_leaves_an_empty_log():
    world, reports = World(), Reports()
    store = world.start()
    ledger = await store.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    reports.append(ledger, b"entry")
    await store.forget(CONTAINER)
    assert ((await world.log()).state, (await world.log()).next_entry) == (LogState.EMPTY, 1)
    assert await world.names() == []
    assert (await world.open()).next_entry == 1


async def test_log_of_a_lost_claim_is_not_emptied():
    world, reports = World(), Reports()
    store = world.start()
    ledger = await store.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    reports.append(ledger, b"entry")
    await reports.all()
    claim_container(world.metadata, CONTAINER)
    await store.forget(CONTAINER)
    assert (await world.log()).state is LogState.OPEN
    assert await read_back(await world.open()) == {0: b"entry"}


async def test_log_that_is_on_stores_is_not_looked_for_in_s3():
    world = World()
    epoch = claim_container(world.metadata, CONTAINER)
    on_stores = open_ledger(None, epoch, 0, (ReplicaId(bytes(16)), ReplicaId(b"a" * 16)), 0, 3)
    assert await world.records.write(CONTAINER, on_stores, NO_VERSION, epoch) is LogWriteOutcome.WRITTEN
    with pytest.raises(IllegalStateError, match="HEADRACE_S3_CONTAINERS") as refused:
        await world.open()
    assert refused.value.specific_code == "log_on_stores"
    assert await world.log() == on_stores


@pytest.mark.parametrize("next_entry", [0, 7])
async def test_log_that_stores_have_emptied_begins_in_s3(next_entry: int):
    """A container may change its class once its log is empty."""
    world = World()
    epoch = claim_container(world.metadata, CONTAINER)
    on_stores = open_ledger(None, epoch, 0, (ReplicaId(bytes(16)), ReplicaId(b"a" * 16)), 0, 3)
    empty = emptied(on_stores, next_entry)
    assert await world.records.write(CONTAINER, empty, NO_VERSION, epoch) is LogWriteOutcome.WRITTEN
    assert (await world.open()).next_entry == next_entry


async def test_older_owner_changes_nothing():
    """A tombstone of an older owner would end the ledger of the newer one."""
    world, reports = World(), Reports()
    older = claim_container(world.metadata, CONTAINER)
    newer = await world.open()
    reports.append(newer, b"entry")
    await reports.all()
    with pytest.raises(FencedError):
        await world.start().open(CONTAINER, older)
    assert await world.names() == ["1-0"]
    reports.append(newer, b"next")
    assert failures(await reports.all()) == [None, None]


async def test_owner_without_a_claim_does_not_repeat():
    world = World()
    older = claim_container(world.metadata, CONTAINER)
    claim_container(world.metadata, CONTAINER)
    with pytest.raises(FencedError, match="newer owner"):
        await world.start().open(CONTAINER, older)


class RecordsThatChange(LogRecordsInline):
    """`change` runs after the first read, as what another process does before the next request."""

    def __init__(self, store: MemoryMetadataStore, change: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._changes = [change]

    async def read(self, container: int) -> StoredLog:
        found = await super().read(container)
        if self._changes:
            await self._changes.pop()()
        return found


async def test_record_that_has_changed_is_read_again():
    world, reports = World(), Reports()
    first = world.start()
    ledger = await first.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    reports.append(ledger, b"entry")
    await reports.all()

    async def hand_over() -> None:
        await first.forget(CONTAINER)
        claim_container(world.metadata, CONTAINER)

    world.records = RecordsThatChange(world.metadata, hand_over)
    opened = await world.start().open(CONTAINER, 1)
    assert (await world.log()).ledgers[-1] == (1, 1)
    assert opened.next_entry == 1


async def test_objects_that_go_while_a_log_is_opened_are_no_damage():
    """The owner before may be deleting what tier 2 has. Objects that are missing then were not needed."""
    world, reports = World(replace(LIMITS, puts_in_flight=1)), Reports()
    first = world.start()
    ledger = await first.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    for number in range(3):
        reports.append(ledger, b"%d" % number)
        await reports.all()
    names = sorted(await world.chunks.names())

    async def empty_in_part() -> None:
        log, version = await LogRecordsInline(world.metadata).read(CONTAINER)
        assert log is not None
        await LogRecordsInline(world.metadata).write(CONTAINER, emptied(log, 3), version, 0)
        claim_container(world.metadata, CONTAINER)
        await world.chunks.delete(names[:1])

    world.records = RecordsThatChange(world.metadata, empty_in_part)
    assert (await world.start().open(CONTAINER, 1)).next_entry == 3


async def test_log_is_not_emptied_as_it_was_released_before():
    """Since then the ledger was open again, and it is not known what its last PUTs have left."""
    world, reports = World(), Reports()
    store, epoch = world.start(), claim_container(world.metadata, CONTAINER)
    reports.append(await store.open(CONTAINER, epoch), b"entry")
    await store.release(CONTAINER)
    again = await store.open(CONTAINER, epoch)
    world.chunks.fate = lambda _name: Fate.LATE
    reports.append(again, b"late")
    await turns(1)
    await store.forget(CONTAINER)
    assert (await world.log()).state is LogState.OPEN
    world.chunks.fate = lambda _name: Fate.DONE
    await world.chunks.deliver()
    assert await read_back(await world.open()) == {0: b"entry", 1: b"late"}


async def test_ledger_that_is_open_here_is_fenced_first():
    """The record is written once the ledger has ended: its last PUTs belong to the log."""
    world = World()
    store = world.start()
    ledger = await store.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    with pytest.raises(FencedError, match="is open with epoch 0"):
        await store.open(CONTAINER, 0)
    assert ledger.append([b"entry"], lambda _error: None) == 0, "it goes on"
    newer = claim_container(world.metadata, CONTAINER)
    with pytest.raises(UnavailableError, match="still open"):
        await store.open(CONTAINER, newer)
    assert (await world.log()).ledgers == ((0, 0),)
    with pytest.raises(FencedError):
        ledger.append([b"more"], lambda _error: None)
    await store.release(CONTAINER)
    assert await read_back(await store.open(CONTAINER, newer)) == {0: b"entry"}


async def test_what_was_released_before_another_owner_is_outdated():
    world, reports = World(), Reports()
    world.records = records = RecordsThatLoseAnswers(world.metadata)
    store = world.start()
    reports.append(await store.open(CONTAINER, claim_container(world.metadata, CONTAINER)), b"entry")
    await store.release(CONTAINER)
    reports.append(await world.open(), b"next")
    await reports.all()
    records.lost = 1
    again = await store.open(CONTAINER, claim_container(world.metadata, CONTAINER))
    assert await read_back(again) == {0: b"entry", 1: b"next"}

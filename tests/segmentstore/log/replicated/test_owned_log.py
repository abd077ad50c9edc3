"""The log of one container at its owner: what it sends, whom it tells, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from random import Random
from typing import cast

import pytest
from crc32c import crc32c
from scripted_log_owner import (
    CONTAINER,
    END,
    EPOCH,
    FORMER,
    OWN,
    ZONES,
    B,
    C,
    D,
    ScriptedOwner,
    plan,
)

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, Codec, RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_DISK_FULL,
    NACK_FENCED,
    NACK_GAP,
    Drop,
    Entries,
    Entry,
    HeldRun,
    Nack,
    Open,
    Opened,
    Pulse,
    PulseItem,
    Read,
)
from headrace.metadata.container_log import LogWriteOutcome, StoredLog
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.errors import CorruptError, FencedError, HeadraceError, ThrottledError, UnavailableError
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import CATCH_UP_BYTES_PER_S, LINK_UNSENT_BYTES_MAX, WriterBounds
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState
from headrace.segmentstore.log.replicated import owned_log
from headrace.segmentstore.log.replicated.owned_log import OwnedLog
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan

pytestmark = pytest.mark.anyio

LARGE = Random(1).randbytes(200_000)
"""Is compressed in another thread, if anything is."""


class HeldCompression:
    """Large entries wait for their encoding until `release`."""

    def __init__(self, owner: ScriptedOwner) -> None:
        self._released = threading.Event()
        self._encoder = owner.owned._appended._encoder
        self._honest = self._encoder.compressed
        self._encoder.compressed = self._compressed  # type: ignore[method-assign]

    def _compressed(self, parts, length):
        self._released.wait()
        return self._honest(parts, length)

    def release(self) -> None:
        self._released.set()


def headers(owner: ScriptedOwner, replica: ReplicaId) -> list[RecordHeader]:
    return [header for member, header, _ in owner.members.entries if member == replica]


async def test_entry_has_the_header_of_its_ledger():
    owner = ScriptedOwner()
    writer = await owner.recovered()
    assert owner.append(b"first") == END
    for replica in (OWN, B):
        owner.ack(replica, END)
    writer.truncate(END - 1)
    assert owner.append(b"second") == END + 1
    first, second = headers(owner, C)
    assert first == RecordHeader(RecordKind.ENTRY, CONTAINER, EPOCH, EPOCH, END, 0, END, 5, crc32c(b"first"))
    assert second == RecordHeader(
        RecordKind.ENTRY, CONTAINER, EPOCH, EPOCH, END + 1, END - 1, END + 1, 6, crc32c(b"second")
    )
    assert [payload for _, _, payload in owner.members.entries] == [b"first"] * 3 + [b"second"] * 3


async def test_compressed_entry_says_so():
    owner = ScriptedOwner(compresses=True)
    await owner.recovered()
    owner.append(bytes(8 << 10))
    (header,) = headers(owner, B)
    assert (header.codec, header.length < 1 << 10) == (Codec.ZSTD, True)


async def test_callers_hear_of_a_quorum_and_of_released_memory():
    owner = ScriptedOwner()
    await owner.recovered()
    large = bytes(100_000)
    owner.append(large)
    owner.append(large)
    owner.ack(B, END)
    assert owner.outcomes == []
    detached = owner.members.detached
    owner.ack(C, END + 1)
    assert owner.outcomes == [(END, None)]
    assert owner.members.detached == detached
    owner.ack(OWN, END)
    assert owner.outcomes == [(END, None), (END, "released")]
    assert owner.members.detached == detached + 1, "links copy what waits before the memory is used again"


async def test_caller_may_append_when_it_hears_of_an_entry():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.owned.append([b"one"], 3, lambda _error: owner.append(b"two"), None)
    owner.ack(B, END)
    owner.ack(C, END)
    assert owner.members.numbers() == [(member, number) for number in (END, END + 1) for member in (OWN, B, C)]


async def test_callers_hear_of_nothing_before_all_members_have_it():
    """The own replica answers at once. A caller that appended then would send to B what C has not got yet."""
    owner = ScriptedOwner()
    await owner.recovered()
    heard: list[int] = []

    def answer(replica: ReplicaId) -> None:
        if replica == C:
            owner.ack(B, END)
            owner.ack(C, END)
            heard.append(len(owner.outcomes))

    owner.members.listen(answer)
    owner.owned.append([b"one"], 3, lambda error: owner.outcomes.append(error), None)
    assert (heard, owner.outcomes) == ([0], [None])


async def test_log_that_ends_while_it_sends_sends_no_more():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.members.listen(lambda _replica: owner.owned.end(FencedError("another owner")))
    owner.append(b"one")
    assert owner.members.numbers() == [(OWN, END)]


async def test_acknowledgement_counts_for_the_zone_that_completed_it():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(b"one")
    owner.ack(B, END)
    owner.clock.advance(40)
    owner.ack(C, END)
    histograms = owner.shared.metrics.logs[CONTAINER].acknowledge_seconds
    assert list(histograms) == ["zone-c"]
    assert (sum(histograms["zone-c"].counts), histograms["zone-c"].total) == (1, pytest.approx(0.04))


async def test_recovery_is_measured_and_counts_no_change():
    owner = ScriptedOwner()
    owner.owned.start()
    await owner.settled()
    owner.clock.advance(70)
    await owner.answer()
    metrics = owner.shared.metrics.logs[CONTAINER]
    assert (sum(metrics.recovery_seconds.counts), metrics.recovery_seconds.total) == (1, pytest.approx(0.07))
    assert metrics.ensemble_changes == 0


async def test_writer_continues_the_sessions_of_the_recovery():
    owner = ScriptedOwner()
    owner.owned = OwnedLog(owner.shared, CONTAINER, EPOCH, plan(), sessions=20)
    writer = await owner.recovered()
    assert sorted(writer.session_of(member) for member in (OWN, B, C)) == [24, 25, 26]
    assert owner.owned.sessions == 26


async def test_log_tells_what_blocks_its_recovery(caplog: pytest.LogCaptureFixture):
    owner = ScriptedOwner()
    owner.owned.start()
    await owner.settled()
    assert (owner.owned.log, owner.owned.blocked_by) == (None, None)
    owner.tick(2_000)
    assert owner.owned.blocked_by is not None
    assert "event=log_blocked container=3 epoch=6" in caplog.text
    await owner.answer()
    owner.tick(2_000)
    await owner.settled()
    assert owner.owned.blocked_by is None
    assert owner.owned.log == owner.records.stored.log
    assert owner.owned.recovered.done()


async def test_recovery_uses_the_replicas_that_are_wanted_now():
    owner = ScriptedOwner(None)
    owner.owned.start()
    await owner.settled()
    owner.members.messages.clear()
    owner.owned.tick(plan(OWN, B, D))
    owner.clock.advance(2_000)
    owner.owned.tick(plan(OWN, B, D))
    assert {replica for replica, _ in owner.members.of(Open)} >= {D}


async def test_writer_gets_the_placement_of_each_tick():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.owned.tick(plan(OWN, B, D, destroyed=[C]))
    assert [replica for replica, _ in owner.members.of(Open)] == [D]
    owner.append(b"one")
    moved = LogPlan((OWN, B, C), 3, Placement({}, {**ZONES, B: "zone-e"}))
    owner.owned.tick(moved)
    owner.ack(OWN, END)
    owner.ack(B, END)
    assert list(owner.shared.metrics.logs[CONTAINER].acknowledge_seconds) == ["zone-e"]


async def test_ended_log_ignores_ticks_and_answers():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(b"one")
    session = owner.owned.machine.session_of(B)
    owner.owned.end(FencedError("another owner"))
    owner.members.messages.clear()
    owner.owned.tick(plan(OWN, B, D))
    owner.clock.advance(60_000)
    owner.owned.tick(plan(OWN, B, D))
    owner.owned.received(B, Nack(CONTAINER, session, NACK_GAP, 0))
    owner.ack(B, END)
    owner.ack(C, END)
    owner.owned.link_lost(C)
    owner.owned.other_replica(C)
    assert owner.members.messages == []
    assert owner.owned.plan.wanted == (OWN, B, C)
    assert owner.shared.metrics.nacks["gap"] == 0
    writer = owner.owned.writer
    assert writer is not None
    assert writer.member_states()[C] is MemberState.STREAMING
    assert writer.acknowledged_entry == END - 1


async def test_refusals_are_counted_and_obeyed():
    owner = ScriptedOwner()
    writer = await owner.recovered()
    owner.owned.received(C, Nack(CONTAINER, writer.session_of(C), NACK_DISK_FULL, 0))
    assert owner.shared.metrics.nacks["disk_full"] == 1
    assert writer.member_states()[C] is MemberState.DOWN
    owner.owned.received(C, Nack(CONTAINER, 0, NACK_FENCED, EPOCH + 1))
    assert isinstance(owner.owned.failure, FencedError)


async def test_lost_link_and_other_replica_reach_the_writer():
    owner = ScriptedOwner()
    writer = await owner.recovered()
    owner.owned.link_lost(B)
    owner.owned.other_replica(C)
    states = writer.member_states()
    assert (states[B], states[C]) == (MemberState.DOWN, MemberState.REFUSED)


async def test_entries_that_come_after_the_recovery_are_ignored():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.owned.received(B, Entries(1, CONTAINER, False, ()))
    assert owner.owned.failure is None


async def test_missing_entries_are_read_and_sent_under_this_epoch():
    owner = ScriptedOwner()
    owner.runs[OWN] = (HeldRun(FORMER, 0, END - 1, END - 1),)
    owner.owned.start()
    await owner.settled()
    await owner.answer(OWN, B)
    owner.tick(300)
    ((source, question),) = owner.members.of(Read)
    assert isinstance(question, Read)
    assert (source, question.first, question.last) == (B, END - 1, END - 1)
    header = RecordHeader(RecordKind.ENTRY, CONTAINER, FORMER, FORMER, END - 1, 0, 0, 1, crc32c(b"x"))
    owner.owned.received(B, Entries(question.request, CONTAINER, False, (Entry(header, b"x"),)))
    assert owner.members.entries == [(OWN, header._replace(writer_epoch=EPOCH), b"x")]


def stored_entries(*numbers: int, epoch: int = FORMER) -> list[Entry]:
    """Entries as the own journal returns them."""
    return [
        Entry(RecordHeader(RecordKind.ENTRY, CONTAINER, epoch, epoch, number, 0, 0, 2, 0), b"%02d" % number)
        for number in numbers
    ]


CATCH_UP_BYTES = RECORD_HEADER_BYTES + 2
"""Of one of `stored_entries`."""


class CatchingUp:
    """The owner of a recovered log whose member C has the entries before 4. `windows` are what the journal reads."""

    def __init__(self) -> None:
        self.owner = ScriptedOwner()
        self.windows: list[list[Entry] | Exception] = []
        self.asked: list[tuple[int, ...]] = []
        self.owner.journal.read = self._read

    def _read(self, *asked: int) -> list[Entry]:
        self.asked.append(asked)
        window = self.windows.pop(0) if self.windows else []
        if isinstance(window, Exception):
            raise window
        return window

    async def begun(self, *windows: list[Entry] | Exception) -> None:
        """The writer feeds C from the journal."""
        writer = await self.owner.recovered()
        self.owner.owned.link_lost(C)
        self.owner.tick(100)
        ((_, message),) = self.owner.members.of(Open)
        assert isinstance(message, Open)
        self.windows = list(windows)
        # A shorter position than before would be suspicious: the damaged entries are still known.
        run = HeldRun(FORMER, 0, 4, END)
        self.owner.owned.received(C, Opened(CONTAINER, message.session, 0, EPOCH, 0, 0, (run,)))
        assert writer.member_states()[C] is MemberState.CATCHING_UP
        await self.owner.settled()


async def test_member_that_catches_up_gets_entries_of_the_journal():
    world = CatchingUp()
    await world.begun(stored_entries(4, 5, 6), stored_entries(7, 8, 9))
    owner = world.owner
    window = WriterBounds().catch_up_window_bytes
    owner.owned.acknowledged(C, owner.owned.machine.session_of(C), FORMER, 6)
    await owner.settled()
    assert world.asked == [(CONTAINER, FORMER, 4, END - 1, window), (CONTAINER, FORMER, 7, END - 1, window)]
    sent = [(member, header.writer_epoch, header.epoch, payload) for member, header, payload in owner.members.entries]
    assert sent == [(C, EPOCH, FORMER, b"%02d" % number) for number in range(4, END)]
    assert owner.shared.metrics.catch_up_bytes == 6 * CATCH_UP_BYTES
    owner.owned.acknowledged(C, owner.owned.machine.session_of(C), FORMER, END - 1)
    assert cast("LedgerWriter", owner.owned.writer).member_states()[C] is MemberState.STREAMING
    assert owner.shared.catch_ups.delay_s(0) == pytest.approx(6 * CATCH_UP_BYTES / CATCH_UP_BYTES_PER_S)


@pytest.mark.parametrize("error", [CorruptError("changed on disk"), OSError("cannot be read")])
async def test_damage_is_reported_when_a_member_catches_up(error: Exception):
    world = CatchingUp()
    await world.begun(error)
    assert world.owner.damages == [(CONTAINER, error)]
    assert world.owner.members.entries == []
    assert world.owner.owned.failure is None


async def test_journal_that_has_nothing_is_told_to_the_writer():
    world = CatchingUp()
    await world.begun([])
    assert cast("LedgerWriter", world.owner.owned.writer).member_states()[C] is MemberState.DOWN


async def test_log_that_ends_meanwhile_sends_nothing_of_the_journal():
    world = CatchingUp()
    owner = world.owner
    await owner.recovered()
    await owner.shared.catch_ups.slots.acquire()
    await owner.shared.catch_ups.slots.acquire()
    owner.owned.link_lost(C)
    owner.tick(100)
    ((_, message),) = owner.members.of(Open)
    assert isinstance(message, Open)
    run = HeldRun(FORMER, 0, 4, END)
    owner.owned.received(C, Opened(CONTAINER, message.session, 0, EPOCH, 0, 0, (run,)))
    await asyncio.sleep(0)
    assert world.asked == [], "others have all places for catching up"
    owner.owned.end(FencedError("another owner"))
    owner.shared.catch_ups.slots.release()
    await owner.settled()
    assert (world.asked, owner.members.entries) == ([], [])


async def test_copies_of_a_takeover_have_places_of_their_own():
    owner = ScriptedOwner()
    owner.runs[C] = (HeldRun(FORMER, 0, 4, 4),)
    owner.runs[B] = ()
    owner.journal.read = lambda _container, _epoch, first, last, _max: stored_entries(*range(first, last + 1))
    for _ in range(2):
        await owner.shared.catch_ups.slots.acquire()
    owner.owned.start()
    await owner.settled()
    await owner.answer(OWN, B, C)
    assert {member for member, _ in owner.members.numbers()} == {B, C}
    assert owner.shared.metrics.catch_up_bytes == 0, "only bulk copies share a rate"
    for replica in (B, C):
        owner.owned.acknowledged(replica, owner.owned.machine.session_of(replica), FORMER, END - 1)
    await owner.settled()
    assert owner.owned.writer is not None


async def test_takeover_sends_the_ledger_that_has_the_entry():
    """The entries of a window belong to one ledger: another one may have the same numbers in the journal."""
    log = ContainerLog(3, LogState.OPEN, (OWN, B, C), (LedgerStart(2, 0), LedgerStart(FORMER, 6)))
    owner = ScriptedOwner(log)
    both = (HeldRun(2, 0, 6, 6), HeldRun(FORMER, 6, END, END))
    owner.runs = {OWN: both, B: both, C: (HeldRun(2, 0, 4, 4),)}
    asked: list[tuple[int, ...]] = []

    def read(_container: int, epoch: int, first: int, last: int, _bytes_max: int) -> list[Entry]:
        asked.append((epoch, first, last))
        return stored_entries(*range(first, last + 1), epoch=epoch)

    owner.journal.read = read
    owner.owned.start()
    await owner.settled()
    await owner.answer()
    assert asked[:1] == [(2, 4, 5)]


async def test_full_link_has_its_member_catch_up():
    owner = ScriptedOwner()
    writer = await owner.recovered()
    owner.members.unsent_bytes = LINK_UNSENT_BYTES_MAX
    owner.append(b"one")
    assert writer.member_states()[B] is MemberState.STREAMING
    owner.members.unsent_bytes += 1
    owner.append(b"two")
    assert [writer.member_states()[member] for member in (OWN, B, C)] == [
        MemberState.STREAMING,
        MemberState.CATCHING_UP,
        MemberState.CATCHING_UP,
    ]


async def test_member_that_comes_back_gets_all_that_it_lacks():
    owner = ScriptedOwner()
    writer = await owner.recovered()
    owner.owned.link_lost(B)
    for data in (b"one", b"two", b"three"):
        owner.append(data)
    owner.members.entries.clear()
    while writer.member_states()[B] is not MemberState.STREAMING:
        owner.tick(100)
        await owner.answer(B)
    assert owner.members.numbers() == [(B, END), (B, END + 1), (B, END + 2)]


async def test_members_are_told_what_is_acknowledged():
    owner = ScriptedOwner()
    writer = await owner.recovered()
    owner.tick(1_000)
    owner.members.messages.clear()
    owner.append(b"one")
    owner.ack(B, END)
    owner.ack(C, END)
    writer.truncate(END)
    owner.tick(1_000)
    assert owner.members.of(Pulse) == [
        (member, Pulse(0, 0, (PulseItem(CONTAINER, END + 1, END),))) for member in (OWN, B, C)
    ]


async def changed(*outcomes: LogWriteOutcome, arrived: ContainerLog | None = None) -> ScriptedOwner:
    """An owner that has removed a destroyed member, with these outcomes. `arrived` is a record written meanwhile."""
    owner = ScriptedOwner()
    await owner.recovered()
    owner.records.outcomes = list(outcomes)
    if arrived is not None:
        owner.records.stored = StoredLog(arrived, 7)
    owner.owned.tick(plan(OWN, B, destroyed=[C]))
    await owner.settled()
    return owner


async def test_change_of_members_is_written_and_counted():
    owner = await changed()
    assert [log.members for log, _, _ in owner.records.written] == [(OWN, B, C), (OWN, B)]
    assert [version for _, version, _ in owner.records.written] == [1, 2]
    assert [message for _, message in owner.members.of(Drop)] == [Drop(CONTAINER, 6, EPOCH)]
    assert owner.shared.metrics.logs[CONTAINER].ensemble_changes == 1
    assert owner.owned.log == owner.records.stored.log


async def test_conflict_of_a_change_reads_the_record():
    """An earlier write of the same owner may have arrived."""
    arrived = ContainerLog(3, LogState.OPEN, (OWN, B), (LedgerStart(FORMER, 0), LedgerStart(EPOCH, END)))
    owner = await changed(LogWriteOutcome.CONFLICT, arrived=arrived)
    assert owner.owned.log == arrived
    assert owner.shared.metrics.logs[CONTAINER].ensemble_changes == 1


async def test_unknown_change_is_written_again():
    owner = await changed(LogWriteOutcome.UNKNOWN)
    assert len(owner.records.written) == 2
    assert cast("ContainerLog", owner.owned.log).members == (OWN, B, C)
    owner.tick(1_000)
    await owner.settled()
    assert len(owner.records.written) == 3
    assert cast("ContainerLog", owner.owned.log).members == (OWN, B)


async def test_lost_claim_ends_the_log():
    owner = await changed(LogWriteOutcome.CLAIM_LOST)
    assert isinstance(owner.owned.failure, FencedError)


async def test_vanished_record_ends_the_log():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.records.outcomes = [LogWriteOutcome.CONFLICT]
    owner.records.stored = StoredLog(None, 0)
    owner.owned.tick(plan(OWN, B, destroyed=[C]))
    await owner.settled()
    assert isinstance(owner.owned.failure, CorruptError)
    assert "container 3 has vanished" in str(owner.owned.failure)


@pytest.mark.parametrize("error", [ThrottledError("slow down"), UnavailableError("no answer")])
async def test_record_that_cannot_be_read_is_read_again(error: HeadraceError):
    owner = ScriptedOwner()
    owner.records.refusals = [error]
    owner.owned.start()
    await owner.settled()
    assert (owner.owned.failure, owner.members.messages) == (None, [])
    owner.tick(999)
    await owner.settled()
    assert owner.members.messages == []
    owner.tick(1)
    await owner.settled()
    assert len(owner.members.of(Open)) == 3


async def test_record_that_a_writer_cannot_read_is_asked_for_again():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.records.outcomes = [LogWriteOutcome.CONFLICT]
    owner.records.refusals = [UnavailableError("no answer")]
    owner.owned.tick(plan(OWN, B, destroyed=[C]))
    await owner.settled()
    assert len(owner.records.written) == 2
    owner.tick(1_000)
    await owner.settled()
    assert len(owner.records.written) == 3


@pytest.mark.parametrize("outcome", [LogWriteOutcome.UNKNOWN, LogWriteOutcome.CONFLICT])
async def test_first_record_of_a_ledger_is_written_until_it_is_known(outcome: LogWriteOutcome):
    owner = ScriptedOwner()
    owner.records.outcomes = [outcome]
    owner.owned.start()
    await owner.settled()
    await owner.answer()
    owner.tick(2_000)
    await owner.settled()
    await owner.answer()
    owner.tick(2_000)
    await owner.settled()
    assert len(owner.records.written) == 2
    assert owner.owned.writer is not None


async def test_claim_that_is_lost_in_a_recovery_ends_it():
    owner = ScriptedOwner()
    owner.records.outcomes = [LogWriteOutcome.CLAIM_LOST]
    owner.owned.start()
    await owner.settled()
    await owner.answer()
    with pytest.raises(FencedError, match="taken over: another store has the claim"):
        await owner.owned.recovered


async def test_entries_from_before_a_snapshot_are_the_past():
    """Without a record, ledgers of lower epochs than that of the snapshot belong to no log that has vanished."""
    owner = ScriptedOwner(None)
    owner.records.snapshot = FORMER + 1
    owner.owned.start()
    await owner.settled()
    await owner.answer()
    owner.tick(300)
    await owner.settled()
    assert owner.owned.writer is not None


async def test_defect_ends_the_log(caplog: pytest.LogCaptureFixture):
    owner = ScriptedOwner()

    def fail(_container: int) -> StoredLog:
        raise ValueError("a defect")

    owner.records.read = fail  # type: ignore[method-assign]
    owner.owned.start()
    await owner.settled()
    with pytest.raises(UnavailableError, match="a defect"):
        await owner.owned.recovered
    assert "event=log_failed container=3" in caplog.text


async def test_denied_position_is_reported(caplog: pytest.LogCaptureFixture):
    owner = ScriptedOwner()
    await owner.recovered()
    owner.owned.link_lost(C)
    owner.tick(100)
    ((_, message),) = owner.members.of(Open)
    assert isinstance(message, Open)
    owner.owned.received(C, Opened(CONTAINER, message.session, 0, EPOCH, 0, 0, ()))
    assert f"event=replica_suspected container=3 replica={C.hex()}" in caplog.text


# The end


def complaints_of_the_loop() -> list[object]:
    """What the loop reports as an error from now on."""
    found: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: found.append(context))
    return found


def polls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a retirement that waits."""
    found: list[float] = []
    honest = asyncio.sleep

    async def sleep(seconds: float) -> None:
        found.extend([seconds] if seconds else [])
        await honest(0)

    monkeypatch.setattr(owned_log.asyncio, "sleep", sleep)
    return found


async def test_retirement_ends_the_log_at_its_members(monkeypatch: pytest.MonkeyPatch):
    owner = ScriptedOwner()
    writer = await owner.recovered()
    sessions = {member: writer.session_of(member) for member in (OWN, B, C)}
    waits = polls(monkeypatch)
    await owner.owned.retire()
    assert waits == []
    ((log, version, epoch),) = owner.records.written[1:]
    assert (log.state, log.next_entry, log.members, version, epoch) == (LogState.EMPTY, END, (), 2, EPOCH)
    assert owner.members.of(Drop) == [(member, Drop(CONTAINER, sessions[member], EPOCH)) for member in (OWN, B, C)]
    assert isinstance(owner.owned.failure, FencedError)


@pytest.mark.parametrize("outcome", [LogWriteOutcome.UNKNOWN, LogWriteOutcome.CONFLICT, LogWriteOutcome.CLAIM_LOST])
async def test_members_keep_a_log_whose_end_is_not_written(outcome: LogWriteOutcome):
    owner = ScriptedOwner()
    await owner.recovered()
    owner.records.outcomes = [outcome]
    await owner.owned.retire()
    assert len(owner.records.written) == 2
    assert owner.members.of(Drop) == []
    assert isinstance(owner.owned.failure, FencedError)


async def test_error_of_the_last_write_ends_the_log():
    owner = ScriptedOwner()
    await owner.recovered()

    def fail(*_arguments: object) -> LogWriteOutcome:
        raise CorruptError("not a record")

    owner.records.write = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(CorruptError):
        await owner.owned.retire()
    assert isinstance(owner.owned.failure, FencedError)


async def test_entry_without_a_number_prevents_the_end():
    """It is still being compressed: the end would be before an entry that its caller waits for."""
    owner = ScriptedOwner(compresses=True)
    await owner.recovered()
    held = HeldCompression(owner)
    owner.append(LARGE)
    assert (owner.owned.next_entry, cast("LedgerWriter", owner.owned.writer).next_entry) == (END + 1, END)
    await owner.owned.retire()
    held.release()
    await owner.settled()
    assert len(owner.records.written) == 1
    assert [type(each) for number, each in owner.outcomes if each != "released"] == [FencedError]


async def test_unacknowledged_entry_prevents_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(owned_log, "RETIRE_PATIENCE_S", 0.05)
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(b"one")
    await owner.owned.retire()
    assert len(owner.records.written) == 1
    assert owner.members.of(Drop) == []


async def test_retirement_waits_for_what_is_not_acknowledged():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(b"one")
    retiring = asyncio.ensure_future(owner.owned.retire())
    await asyncio.sleep(0)
    assert not retiring.done()
    owner.ack(B, END)
    owner.ack(C, END)
    await retiring
    assert owner.records.written[-1][0].next_entry == END + 1


async def test_log_that_was_not_recovered_retires_without_a_write():
    owner = ScriptedOwner()
    owner.owned.start()
    await owner.settled()
    await owner.owned.retire()
    assert owner.records.written == []
    with pytest.raises(FencedError, match="container 3 was closed"):
        await owner.owned.recovered


async def test_log_that_has_failed_retires_without_a_write():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.owned.end(UnavailableError("the store stops"))
    await owner.owned.retire()
    assert len(owner.records.written) == 1
    assert isinstance(owner.owned.failure, UnavailableError), "the first failure stays"


async def test_failure_in_the_wait_ends_a_retirement(monkeypatch: pytest.MonkeyPatch):
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(b"one")
    waits = polls(monkeypatch)
    retiring = asyncio.ensure_future(owner.owned.retire())
    await asyncio.sleep(0)
    owner.owned.end(FencedError("another owner"))
    await retiring
    assert len(waits) == 1
    assert len(owner.records.written) == 1


async def test_end_tells_callers_and_keeps_memory_for_the_journal():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(bytes(100_000))
    detached = owner.members.detached
    error = FencedError("another owner")
    owner.owned.end(error)
    assert owner.outcomes == [], "a caller is not told from within its own call"
    await asyncio.sleep(0)
    assert owner.outcomes == [(END, error)]
    assert owner.members.detached == detached + 1
    owner.journal.sync()
    assert owner.outcomes == [(END, error), (END, "released")]
    await owner.owned.all_released()


async def test_end_releases_memory_although_the_journal_has_failed():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(bytes(100_000))
    owner.journal.refuses = True
    owner.owned.end(FencedError("another owner"))
    await asyncio.sleep(0)
    assert (END, "released") in owner.outcomes


async def test_release_waits_for_the_memory_of_all_entries():
    owner = ScriptedOwner()
    await owner.recovered()
    owner.append(bytes(100_000))
    waiting = asyncio.ensure_future(owner.owned.all_released())
    await asyncio.sleep(0)
    owner.ack(B, END)
    owner.ack(C, END)
    await asyncio.sleep(0)
    assert not waiting.done()
    owner.ack(OWN, END)
    await waiting


async def test_end_cancels_requests_that_are_under_way():
    owner = ScriptedOwner()
    answers = threading.Event()
    honest = owner.records.read

    def read(container: int) -> StoredLog:
        answers.wait()
        return honest(container)

    owner.records.read = read  # type: ignore[method-assign]
    complaints = complaints_of_the_loop()
    owner.owned.start()
    await asyncio.sleep(0)
    (task,) = owner.owned._tasks
    owner.owned.end(FencedError("another owner"))
    await owner.settled()
    answers.set()
    assert task.cancelled()
    assert (owner.members.messages, complaints) == ([], [])


async def test_failed_opening_without_a_waiter_is_no_error_of_the_loop():
    complaints = complaints_of_the_loop()
    owner = ScriptedOwner()
    owner.owned.end(FencedError("another owner"))
    del owner
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []

"""The logs that a process owns: who opens them again, who hears what, and how they end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from crc32c import crc32c
from scripted_journal import ScriptedJournal
from scripted_log_owner import B, C, ScriptedRecords

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_DISK_FULL,
    Ack,
    AckItem,
    Drop,
    Nack,
    Open,
    Opened,
)
from headrace.metadata.container_log import ContainerLogRecords, StoredLog
from headrace.model.container_logs import ContainerLog, ReplicaId
from headrace.model.errors import FencedError, UnavailableError
from headrace.model.replica_placement import Placement
from headrace.ports.replicas import OwnerMessage, ReplicaEvents
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.log.replicated.owned_log import OwnedLog
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions
from headrace.segmentstore.log.replicated.replicated_ledgers import (
    LOOK_AT_SPACE_EVERY_TICKS,
    ReplicatedLedgers,
)
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan

pytestmark = pytest.mark.anyio

OWN = ReplicaId(ScriptedJournal.replica_id)
LOG, EPOCH = 3, 6


class Links:
    """`ports.replicas.ReplicaLinks` that keep what is sent."""

    def __init__(self) -> None:
        self.events: ReplicaEvents | None = None
        self.sent: list[tuple[ReplicaId, OwnerMessage]] = []
        self.entries: list[tuple[ReplicaId, int]] = []
        self.detached = 0
        self.is_closed = False

    def start(self, events: ReplicaEvents) -> None:
        self.events = events

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        self.sent.append((replica, message))

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Any]) -> int:
        self.entries.append((replica, header.entry))
        return 77

    def detach(self) -> None:
        self.detached += 1

    def is_up(self, _replica: ReplicaId) -> bool:
        return True

    def silent_s(self, _replica: ReplicaId) -> float | None:
        return None

    async def close(self) -> None:
        self.is_closed = True

    def take(self, kind: type[OwnerMessage]) -> list[tuple[ReplicaId, Any]]:
        messages = [message for message in self.sent if isinstance(message[1], kind)]
        self.sent = [message for message in self.sent if not isinstance(message[1], kind)]
        return messages


class AllRecords(ScriptedRecords):
    """A log record for each container."""

    def __init__(self) -> None:
        super().__init__(None)
        self.logs: dict[int, StoredLog] = {}

    def read(self, container: int) -> StoredLog:
        return self.logs.get(container, StoredLog(None, 0))

    def write(self, container: int, log: ContainerLog, version: int, epoch: int, _known: StoredLog | None) -> Any:
        outcome = super().write(3, log, version, epoch, None)
        self.logs[container] = self.stored
        return outcome


class Process:
    """A process with its replicas. The replicas B and C answer as the test says."""

    def __init__(self, **bounds: Any) -> None:
        self.journal, self.links, self.records = ScriptedJournal(), Links(), AllRecords()
        self.plan: Callable[[int], LogPlan] = lambda _container: LogPlan(
            (OWN, B, C), 3, Placement({}, {OWN: "a", B: "b", C: "c"})
        )
        self.sessions = ReplicaSessions(cast("EntryJournal", self.journal), {}, lambda *_: None)
        self.ledgers = ReplicatedLedgers(
            cast("EntryJournal", self.journal),
            cast("ContainerLogRecords", self.records),
            ManualClock(),
            lambda container: self.plan(container),
            lambda *_: None,
            **bounds,
        )

    def start(self) -> Process:
        """Begin, but let no time pass: ticks are made by `tick`."""
        self.ledgers.start(self.sessions, self.links)
        self.ledgers._ticks.cancel()
        return self

    async def tick(self) -> None:
        await self.ledgers._tick()

    async def answer(self, container: int = LOG, end: int = 0) -> None:
        """The journal syncs and B and C answer, until the log is recovered and all its members stream."""
        owned = self.ledgers._owned[container]
        epoch = owned.epoch
        while not self._streams(owned):
            self.journal.sync()
            for replica, message in self.links.take(Open):
                self.ledgers.received(replica, Opened(message.container, message.session, 0, epoch, end, 0, ()))
            await asyncio.gather(*owned._tasks, return_exceptions=True)
            await asyncio.sleep(0)

    @staticmethod
    def _streams(owned: OwnedLog) -> bool:
        writer = owned.writer
        return writer is not None and all(state is MemberState.STREAMING for state in writer.member_states().values())

    async def opened(self, container: int = LOG, epoch: int = EPOCH, end: int = 0) -> Any:
        opening = asyncio.ensure_future(self.ledgers.open(container, epoch))
        await asyncio.sleep(0)
        await self.answer(container, end)
        return await opening

    def writer(self, container: int = LOG) -> LedgerWriter:
        writer = self.ledgers.owned[container].writer
        assert writer is not None
        return writer


async def test_nothing_is_opened_while_the_journal_is_read():
    process = Process()
    assert process.ledgers.received_bytes == 0
    with pytest.raises(UnavailableError, match="still being read"):
        await process.ledgers.open(LOG, EPOCH)
    await process.ledgers.close()
    assert not process.links.is_closed


async def test_logs_with_copies_need_no_lease():
    ledgers = Process().ledgers
    assert (ledgers.needs_lease(LOG), ledgers.epochs()) == (False, {})


async def test_space_of_a_process_is_that_of_its_journal():
    process = Process()
    process.journal.log_bytes = 5
    assert process.ledgers.space() == process.journal.space()


async def test_received_bytes_are_those_of_the_replicas():
    process = Process().start()
    process.sessions._received_bytes = 5
    assert process.ledgers.received_bytes == 5


async def test_messages_go_to_the_own_replica_or_to_a_link():
    process = Process().start()
    ledgers = process.ledgers
    message = Drop(LOG, 1, EPOCH)
    ledgers.send(B, message)
    assert process.links.sent == [(B, message)]
    ledgers.send(ledgers.own, Open(LOG, 1, EPOCH, 0, ()))
    assert len(process.links.sent) == 1
    assert process.sessions.log(LOG).promise == EPOCH
    header = RecordHeader(RecordKind.ENTRY, LOG, EPOCH, EPOCH, 0, 0, 0, 1, crc32c(b"x"))
    assert ledgers.send_entry(C, header, [b"x"]) == 77
    assert ledgers.send_entry(ledgers.own, header, [b"x"]) == 0
    assert process.links.entries == [(C, 0)]
    ledgers.detach()
    assert process.links.detached == 1


async def test_close_ends_logs_links_replicas_and_threads():
    process = Process()
    process.ledgers.start(process.sessions, process.links)
    assert process.links.events is process.ledgers
    assert process.ledgers._ticks.is_running
    ledgers = [await process.opened(container) for container in (3, 4)]
    await process.ledgers.close()
    assert process.links.is_closed
    assert not process.ledgers._ticks.is_running
    assert process.ledgers.owned == {}
    for ledger in ledgers:
        with pytest.raises(UnavailableError, match="the store stops"):
            ledger.append([b"x"], lambda _error: None)
    for threads in (process.sessions._threads, process.ledgers._shared.threads):
        with pytest.raises(RuntimeError, match="after shutdown"):
            await threads.run(int)


async def test_lower_epoch_is_fenced_and_a_higher_one_ends_the_log():
    process = Process().start()
    ledger = await process.opened()
    with pytest.raises(FencedError, match="opened with epoch 6, after 5"):
        await process.ledgers.open(LOG, EPOCH - 1)
    ledger.append([b"x"], lambda _error: None)
    again = asyncio.ensure_future(process.ledgers.open(LOG, EPOCH + 1))
    await asyncio.sleep(0)
    assert process.ledgers.owned[LOG].epoch == EPOCH + 1
    with pytest.raises(FencedError, match="claimed again with epoch 7"):
        ledger.append([b"x"], lambda _error: None)
    again.cancel()


async def test_same_epoch_is_the_same_log():
    process = Process().start()
    await process.opened()
    owned = process.ledgers.owned[LOG]
    await process.ledgers.open(LOG, EPOCH)
    assert process.ledgers.owned[LOG] is owned


async def test_log_that_failed_is_not_opened_with_its_epoch():
    process = Process().start()
    await process.opened()
    error = FencedError("another owner")
    process.ledgers.owned[LOG].end(error)
    assert process.ledgers.owned == {}
    with pytest.raises(FencedError) as raised:
        await process.ledgers.open(LOG, EPOCH)
    assert raised.value is error


async def test_failed_recovery_is_begun_again_behind_its_sessions():
    process = Process().start()
    opening = asyncio.ensure_future(process.ledgers.open(LOG, EPOCH))
    await asyncio.sleep(0)
    owned = process.ledgers.owned[LOG]
    while owned.sessions < 3:
        await asyncio.gather(*owned._tasks)
        await asyncio.sleep(0)
    owned.end(UnavailableError("the log has a defect"))
    with pytest.raises(UnavailableError, match="has a defect"):
        await opening
    await process.opened()
    again = process.ledgers._owned[LOG]
    assert again is not owned
    assert again.sessions > 6, "replicas ignore lower numbers"


async def test_log_that_fails_during_the_count_is_not_opened():
    process = Process().start()
    run = process.ledgers._shared.threads.run
    error = FencedError("another owner")

    async def fail_meanwhile(call: Any) -> Any:
        counted = await run(call)
        process.ledgers._owned[LOG].end(error)
        return counted

    process.ledgers._shared.threads.run = fail_meanwhile  # type: ignore[method-assign]
    opening = asyncio.ensure_future(process.ledgers.open(LOG, EPOCH))
    await asyncio.sleep(0)
    await process.answer()
    with pytest.raises(FencedError) as raised:
        await opening
    assert raised.value is error
    assert process.ledgers.unreplicated_bytes() == {}


async def test_opening_says_once_that_it_waits():
    process = Process(open_patience_s=0.01).start()
    with pytest.raises(UnavailableError, match="container 3 cannot be opened: too few of its members have answered"):
        await process.ledgers.open(LOG, EPOCH)
    patient = asyncio.ensure_future(process.ledgers.open(LOG, EPOCH))
    await asyncio.wait([patient], timeout=0.05)
    assert not patient.done()
    await process.answer()
    await patient


async def test_blocked_opening_says_why():
    process = Process(open_patience_s=0.01).start()
    process.ledgers._begin(LOG, EPOCH)
    process.ledgers.owned[LOG]._recovery._progress.block("a member is away")
    with pytest.raises(UnavailableError, match="cannot be opened: a member is away; it opens by itself"):
        await process.ledgers.open(LOG, EPOCH)


async def test_answers_reach_the_log_that_they_name():
    process = Process().start()
    for container in (3, 4):
        (await process.opened(container)).append([b"x"], lambda _error: None)
    process.journal.sync()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    session = process.writer(4).session_of(B)
    process.ledgers.received(B, Ack((AckItem(4, session, EPOCH, 1), AckItem(9, 1, 1, 1))))
    assert [process.writer(each).positions[B] for each in (3, 4)] == [-1, 0]
    assert [process.writer(each).acknowledged_entry for each in (3, 4)] == [-1, 0]
    items = [AckItem(each, process.writer(each).session_of(C), EPOCH, 1) for each in (3, 4)]
    process.ledgers.received(C, Ack(tuple(items)))
    assert [process.writer(each).positions[C] for each in (3, 4)] == [0, 0]
    process.ledgers.received(C, Nack(3, process.writer(3).session_of(C), NACK_DISK_FULL, 0))
    assert [process.writer(each).member_states()[C] is MemberState.DOWN for each in (3, 4)] == [True, False]


async def test_lost_links_reach_all_logs():
    process = Process().start()
    for container in (3, 4):
        await process.opened(container)
    process.ledgers.link_lost(B)
    process.ledgers.other_replica(C)
    for container in (3, 4):
        states = process.writer(container).member_states()
        assert (states[B], states[C]) == (MemberState.DOWN, MemberState.REFUSED)


async def test_defect_of_one_log_ends_that_one_only(caplog: pytest.LogCaptureFixture):
    process = Process().start()
    for container in (3, 4):
        await process.opened(container)

    def fail(_replica: ReplicaId) -> None:
        raise ValueError("a defect")

    process.ledgers.owned[3].link_lost = fail  # type: ignore[method-assign]
    process.ledgers.link_lost(B)
    assert list(process.ledgers.owned) == [4]
    failure = process.ledgers._owned[3].failure
    assert isinstance(failure, UnavailableError)
    assert "container 3 has a defect" in failure.message
    assert "event=log_failed container=3" in caplog.text
    assert process.writer(4).member_states()[B] is MemberState.DOWN


async def test_released_log_stays_open_for_its_members():
    process = Process().start()
    ledger = await process.opened()
    releases: list[str] = []
    ledger.append([bytes(100_000)], lambda _error: None, lambda: releases.append("released"))
    releasing = asyncio.ensure_future(process.ledgers.release(LOG))
    await asyncio.sleep(0)
    assert not releasing.done()
    with pytest.raises(FencedError, match="was closed"):
        ledger.append([b"x"], lambda _error: None)
    assert process.ledgers.unreplicated_bytes() == {}
    process.journal.sync()
    await releasing
    assert releases == ["released"]
    assert list(process.ledgers.owned) == [LOG]
    await process.ledgers.release(LOG)  # again, as after a failed hand-over


async def test_forgotten_log_is_retired_and_its_ledger_closed():
    process = Process().start()
    ledger = await process.opened()
    forgetting = asyncio.ensure_future(process.ledgers.forget(LOG))
    await asyncio.sleep(0)
    with pytest.raises(FencedError):
        ledger.append([b"x"], lambda _error: None)
    assert process.ledgers.owned, "until the end is written it takes the answers of its members"
    await forgetting
    assert process.ledgers._owned == {}
    assert [replica for replica, _ in process.links.take(Drop)] == [B, C]
    assert process.ledgers.unreplicated_bytes() == {}
    await process.ledgers.forget(LOG)
    await process.ledgers.release(LOG)


async def test_log_that_is_opened_while_it_is_forgotten_stays():
    process = Process().start()
    await process.opened()
    forgetting = asyncio.ensure_future(process.ledgers.forget(LOG))
    await asyncio.sleep(0)
    again = process.ledgers._begin(LOG, EPOCH + 1)
    await forgetting
    assert process.ledgers._owned == {LOG: again}


async def test_open_ledgers_say_what_lacks_copies():
    process = Process().start()
    await process.opened(4)
    await process.opened(3)
    assert list(process.ledgers.unreplicated_bytes().items()) == [(3, 0), (4, 0)]


async def test_space_is_looked_at_once_a_second():
    process = Process().start()
    looks: list[int] = []
    process.sessions.look_at_space = lambda: looks.append(1)  # type: ignore[method-assign]
    for _ in range(2 * LOOK_AT_SPACE_EVERY_TICKS):
        await process.tick()
    assert len(looks) == 2


async def test_tick_places_and_passes_time():
    process = Process().start()
    for container in (3, 4):
        await process.opened(container)
    moved = LogPlan((OWN, B), 3, Placement({}, {OWN: "a", B: "b"}))
    process.plan = lambda _container: moved
    await process.tick()
    assert [owned.plan is moved for owned in process.ledgers.owned.values()] == [True, True]
    for owned in process.ledgers.owned.values():
        owned.end(FencedError("another owner"))
    process.plan = lambda _container: pytest.fail("a log that has ended needs no plan")
    await process.tick()


async def test_plan_that_fails_is_reported_once_and_again_later(caplog: pytest.LogCaptureFixture):
    process = Process().start()
    await process.opened()
    honest, plan = process.plan, process.ledgers.owned[LOG].plan

    def fail(_container: int) -> LogPlan:
        raise ValueError("no leases")

    caplog.set_level(logging.ERROR)
    reports = []
    for made in (fail, fail, honest, fail):
        process.plan = made
        await process.tick()
        reports.append(caplog.text.count("event=log_not_planned container=3"))
        if made is fail:
            assert process.ledgers.owned[LOG].failure is None
    assert reports == [1, 1, 1, 2]
    assert process.ledgers.owned[LOG].plan.wanted == plan.wanted


async def test_own_answers_come_in_order_and_in_a_later_turn():
    """The machine of the owner is in the middle of sending when its own replica answers."""
    process = Process().start()
    link, told = process.ledgers._own_link, list[object]()
    process.ledgers._own_link._deliver = told.append
    link.send(Ack(()))
    link.send(Nack(3, 1, 1, 1))
    assert told == []
    await asyncio.sleep(0)
    assert told == [Ack(()), Nack(3, 1, 1, 1)]
    link.send(Ack((), 1))
    await asyncio.sleep(0)
    assert told[2:] == [Ack((), 1)]


async def test_bounds_are_those_that_were_given():
    writer, recovery = WriterBounds(silence_ms=1), RecoveryBounds(retry_ms=1)
    shared = Process(writer_bounds=writer, recovery_bounds=recovery).ledgers._shared
    assert (shared.writer_bounds, shared.recovery_bounds) == (writer, recovery)

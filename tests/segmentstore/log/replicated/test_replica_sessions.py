"""The replicas of a process: what they queue, whom they tell, and how much they receive before it is on disk."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest
from crc32c import crc32c
from scripted_journal import ROOM_BYTES, ScriptedJournal

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, Codec, RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_DISK_FULL,
    NACK_PROTOCOL,
    Ack,
    AckItem,
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
from headrace.metadata.container_log import ContainerLogRecords, StoredLog
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.errors import CorruptError
from headrace.ports.replicas import ReplicaAnswer
from headrace.replication.replica_log import RecoveredLog
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.log.replicated.replica_sessions import ANSWER_BYTES_MAX, READS_MAX, ReplicaSessions

pytestmark = pytest.mark.anyio

PAYLOAD = b"x" * 20
ENTRY_BYTES = RECORD_HEADER_BYTES + len(PAYLOAD)
EPOCH = 15


class Link:
    """`ports.replicas.OwnerLink` that keeps the answers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: list[ReplicaAnswer] = []
        self.is_paused = False
        self.pauses = 0

    def send(self, message: ReplicaAnswer) -> None:
        self.answers.append(message)

    def pause(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def close(self) -> None:
        raise AssertionError("the listener closes links")

    def take(self) -> list[ReplicaAnswer]:
        answers, self.answers = self.answers, []
        return answers


class Replicas:
    """The replicas of one journal, with links to owners."""

    def __init__(self, received_bytes_max: int = 1 << 20, recovered: dict[int, RecoveredLog] | None = None) -> None:
        self.journal = ScriptedJournal()
        self.damages: list[tuple[int, Exception]] = []
        self.sessions = ReplicaSessions(
            cast("EntryJournal", self.journal),
            recovered or {},
            lambda container, error: self.damages.append((container, error)),
            received_bytes_max=received_bytes_max,
        )
        self.links = 0

    def link(self) -> Link:
        self.links += 1
        link = Link(self.links)
        self.sessions.connected(link)
        return link

    async def synced(self, count: int | None = None) -> None:
        """What was queued is durable, and the owners were told."""
        self.journal.sync(count)
        await asyncio.sleep(0)

    async def opened(self, link: Link, container: int = 3, session: int = 1) -> None:
        """The owner with `EPOCH` has opened a log over this link."""
        self.sessions.received(link, Open(container, session, EPOCH, 0, (LedgerStart(EPOCH, 0),)))
        await self.synced()
        assert isinstance(link.take()[-1], Opened)

    def append(self, link: Link, number: int, container: int = 3, acknowledged_before: int = 0) -> None:
        header = RecordHeader(
            RecordKind.ENTRY, container, EPOCH, EPOCH, number, 0, acknowledged_before, len(PAYLOAD), crc32c(PAYLOAD)
        )
        self.sessions.received(link, Entry(header, PAYLOAD))


async def test_entry_is_queued_with_all_that_its_header_says():
    replicas = Replicas()
    link = replicas.link()
    ledgers = (LedgerStart(12, 0), LedgerStart(EPOCH, 4))
    replicas.sessions.received(link, Open(3, 1, EPOCH, 2, ledgers))
    await replicas.synced()
    header = RecordHeader(RecordKind.ENTRY, 3, 12, EPOCH, 2, 1, 7, len(PAYLOAD), crc32c(PAYLOAD), Codec.ZSTD)
    replicas.sessions.received(link, Entry(header, PAYLOAD))
    (queued,) = replicas.journal.queued
    assert (queued.kind, queued.container, queued.epoch, queued.writer_epoch) == (RecordKind.ENTRY, 3, 12, EPOCH)
    assert (queued.entry, queued.truncated_before, queued.acknowledged_before) == (2, 1, 7)
    assert (queued.parts, queued.length, queued.payload_checksum) == ((PAYLOAD,), len(PAYLOAD), crc32c(PAYLOAD))
    assert (queued.codec, queued.released) == (Codec.ZSTD, None)


async def test_records_without_a_payload_bring_no_checksum():
    replicas = Replicas()
    replicas.sessions.received(replicas.link(), Open(3, 1, EPOCH, 2, (LedgerStart(EPOCH, 0),)))
    promise = replicas.journal.queued[0]
    assert (promise.kind, promise.writer_epoch, promise.payload_checksum) == (RecordKind.PROMISE, EPOCH, None)


async def test_acknowledged_position_is_in_later_records():
    """A restart must know the witness, and the only place for it is the journal."""
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.append(link, 0)
    replicas.append(link, 1, acknowledged_before=1)
    assert [record.acknowledged_before for record in replicas.journal.queued] == [0, 1]
    await replicas.synced()
    replicas.sessions.received(link, Pulse(0, 0, (PulseItem(3, 2, 1),)))
    (truncation,) = replicas.journal.queued
    assert (truncation.kind, truncation.truncated_before) == (RecordKind.TRUNCATION, 1)
    assert truncation.acknowledged_before == 2


async def test_each_log_of_a_pulse_hears_of_it():
    replicas = Replicas()
    link = replicas.link()
    for container in (3, 4, 5):
        await replicas.opened(link, container)
        for number in range(3):
            replicas.append(link, number, container)
        await replicas.synced()
    replicas.sessions.received(link, Pulse(0, 0, tuple(PulseItem(container, 3, 2) for container in (3, 4, 5))))
    truncations = [(record.container, record.truncated_before) for record in replicas.journal.queued]
    assert truncations == [(3, 2), (4, 2), (5, 2)]


async def test_logs_hear_of_a_lost_link():
    replicas = Replicas()
    lost, other = replicas.link(), replicas.link()
    await replicas.opened(lost, container=3)
    await replicas.opened(lost, container=4)
    await replicas.opened(other, container=5)
    replicas.sessions.lost(lost)
    assert [replicas.sessions.log(each).session is None for each in (3, 4, 5)] == [True, True, False]
    replicas.sessions.received(other, Read(9, 3, EPOCH, 0, 0, 1))
    assert other.take() == [Nack(3, 0, NACK_PROTOCOL, 9)]


async def test_lost_link_gets_no_answer():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.append(link, 0)
    replicas.sessions.lost(link)
    await replicas.synced()
    assert link.answers == []
    replicas.sessions.received(link, Read(1, 3, EPOCH, 0, 0, 100))
    assert link.answers == []


async def test_one_commit_is_acknowledged_with_one_message_per_link():
    replicas = Replicas()
    first, second = replicas.link(), replicas.link()
    for link, container in ((first, 3), (first, 4), (second, 5)):
        await replicas.opened(link, container)
    for number in range(2):
        for link, container in ((first, 3), (first, 4), (second, 5)):
            replicas.append(link, number, container)
    await replicas.synced()
    assert first.take() == [Ack((AckItem(3, 1, EPOCH, 2), AckItem(4, 1, EPOCH, 2)))]
    assert second.take() == [Ack((AckItem(5, 1, EPOCH, 2),))]


async def test_entries_are_acknowledged_commit_by_commit():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    for number in range(3):
        replicas.append(link, number)
    await replicas.synced(2)
    await replicas.synced()
    assert link.take() == [Ack((AckItem(3, 1, EPOCH, 2),)), Ack((AckItem(3, 1, EPOCH, 3),))]


async def test_entry_that_is_durable_is_acknowledged_at_once():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.append(link, 0)
    await replicas.synced()
    link.take()
    replicas.append(link, 0)
    assert link.take() == [Ack((AckItem(3, 1, EPOCH, 1),))]
    assert replicas.journal.queued == []


async def test_failed_journal_acknowledges_nothing():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.append(link, 0)
    replicas.journal.fail()
    await asyncio.sleep(0)
    assert link.answers == []
    assert replicas.sessions.log(3).durable_end == 0


async def test_refused_entry_counts_as_no_received_bytes():
    """The journal has failed. What it refuses waits for no sync, so nothing would ever reduce the count."""
    replicas = Replicas(received_bytes_max=1)
    link = replicas.link()
    await replicas.opened(link)
    replicas.journal.refuses = True
    replicas.append(link, 0)
    assert (replicas.sessions.received_bytes, link.is_paused) == (0, False)


async def test_refused_entry_leaves_no_size_behind():
    """The sizes of queued records are taken in their order: one too many would be that of another record."""
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.journal.refuses = True
    replicas.append(link, 0)
    replicas.journal.refuses = False
    header = RecordHeader(RecordKind.ENTRY, 3, EPOCH, EPOCH, 1, 0, 0, 1, crc32c(b"a"))
    replicas.sessions.take_entry(link.number, header, (b"a",))
    await replicas.synced()
    assert replicas.sessions.received_bytes == 0


async def test_received_bytes_are_those_that_are_not_on_disk():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    for number in range(3):
        replicas.append(link, number)
    assert replicas.sessions.received_bytes == 3 * ENTRY_BYTES
    await replicas.synced(2)
    assert replicas.sessions.received_bytes == ENTRY_BYTES
    await replicas.synced()
    assert replicas.sessions.received_bytes == 0


async def test_entries_of_this_process_are_not_received_bytes():
    replicas = Replicas(received_bytes_max=1)
    link = replicas.link()
    await replicas.opened(link)
    header = RecordHeader(RecordKind.ENTRY, 3, EPOCH, EPOCH, 0, 0, 0, 2, crc32c(b"ab"))
    replicas.sessions.take_entry(link.number, header, (b"a", b"b"))
    assert replicas.journal.queued[0].parts == (b"a", b"b")
    assert (replicas.sessions.received_bytes, link.is_paused) == (0, False)
    await replicas.synced()
    assert replicas.sessions.received_bytes == 0
    assert link.take() == [Ack((AckItem(3, 1, EPOCH, 1),))]


async def test_links_pause_until_half_of_the_bytes_are_on_disk():
    replicas = Replicas(received_bytes_max=4 * ENTRY_BYTES)
    link, other = replicas.link(), replicas.link()
    await replicas.opened(link)
    for number in range(4):
        replicas.append(link, number)
    assert not link.is_paused
    replicas.append(link, 4)
    replicas.append(link, 5)
    assert (link.is_paused, other.is_paused, link.pauses) == (True, True, 1)
    late = replicas.link()
    assert late.is_paused
    await replicas.synced(3)
    assert link.is_paused
    await replicas.synced(1)
    assert [replica_link.is_paused for replica_link in (link, other, late)] == [False, False, False]
    assert not replicas.link().is_paused
    for number in range(6, 9):
        replicas.append(link, number)
    assert link.is_paused


async def test_lost_link_is_neither_paused_nor_resumed():
    replicas = Replicas(received_bytes_max=ENTRY_BYTES)
    link, lost = replicas.link(), replicas.link()
    await replicas.opened(link)
    replicas.sessions.lost(lost)
    replicas.append(link, 0)
    replicas.append(link, 1)
    assert (link.is_paused, lost.is_paused) == (True, False)


async def test_full_volume_refuses_entries_of_others():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link, session=6)
    replicas.journal.log_bytes = ROOM_BYTES
    replicas.append(link, 0)
    assert len(replicas.journal.queued) == 1, "the volume is looked at once a second"
    replicas.sessions.look_at_space()
    replicas.append(link, 1)
    assert link.take() == [Nack(3, 6, NACK_DISK_FULL, 0)]
    assert len(replicas.journal.queued) == 1
    replicas.journal.log_bytes = 0
    replicas.sessions.look_at_space()
    replicas.append(link, 1)
    assert len(replicas.journal.queued) == 2


async def test_entry_without_a_session_is_no_matter_of_space():
    replicas = Replicas()
    link = replicas.link()
    replicas.journal.log_bytes = ROOM_BYTES
    replicas.sessions.look_at_space()
    replicas.append(link, 0)
    assert [type(message) for message in link.take()] == [Nack]
    assert replicas.journal.queued == []


async def test_own_entries_are_taken_on_a_full_volume():
    """They may be the checkpoints that free files."""
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.journal.log_bytes = ROOM_BYTES
    replicas.sessions.look_at_space()
    header = RecordHeader(RecordKind.ENTRY, 3, EPOCH, EPOCH, 0, 0, 0, 1, crc32c(b"a"))
    replicas.sessions.take_entry(link.number, header, (b"a",))
    assert len(replicas.journal.queued) == 1


async def test_empty_entry_has_no_parts():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.sessions.received(link, Entry(RecordHeader(RecordKind.ENTRY, 3, EPOCH, EPOCH, 0, 0, 0, 0, 0), b""))
    assert replicas.journal.queued[0].parts == ()


async def test_chain_of_an_open_frees_what_is_outside_of_it():
    replicas = Replicas()
    link, ledgers = replicas.link(), (LedgerStart(EPOCH, 0),)
    replicas.sessions.received(link, Open(3, 1, EPOCH, 0, ledgers))
    chains = [record.chain for record in replicas.journal.queued]
    assert [None if chain is None else chain.ledgers for chain in chains] == [None, ledgers]
    assert replicas.journal.queued[1].container == 3


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Open(3, 1, EPOCH, 0, ()), id="chain is not known"),
        pytest.param(Open(3, 1, EPOCH - 1, 0, (LedgerStart(EPOCH - 1, 0),)), id="refused"),
    ],
)
async def test_open_without_a_chain_that_counts_frees_nothing(message: Open):
    replicas = Replicas(recovered={3: RecoveredLog(promise=EPOCH)})
    replicas.sessions.received(replicas.link(), message)
    assert [record for record in replicas.journal.queued if record.chain is not None] == []


async def test_drop_is_for_the_session_that_it_names():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link, session=2)
    replicas.append(link, 0)
    await replicas.synced()
    replicas.sessions.received(link, Drop(3, 1, EPOCH))
    assert replicas.journal.queued == []
    replicas.sessions.received(link, Drop(3, 2, EPOCH))
    assert [record.kind for record in replicas.journal.queued] == [RecordKind.DROP]
    assert replicas.sessions.log(3).is_empty


def entries(first: int, count: int) -> list[Entry]:
    headers = (RecordHeader(RecordKind.ENTRY, 3, EPOCH, EPOCH, first + each, 0, 0, 1, 0) for each in range(count))
    return [Entry(header, b"p") for header in headers]


@pytest.mark.parametrize(("asked", "read"), [(100, 100), (ANSWER_BYTES_MAX + 1, ANSWER_BYTES_MAX)])
async def test_answer_to_a_read_fits_into_a_message(asked: int, read: int):
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    calls: list[tuple[int, ...]] = []

    def found(*call: int) -> list[Entry]:
        calls.append(call)
        return entries(4, 2)

    replicas.journal.read = found
    replicas.sessions.received(link, Read(8, 3, EPOCH, 4, 6, asked))
    await asyncio.gather(*replicas.sessions._reading)
    assert calls == [(3, EPOCH, 4, 6, read)]
    assert link.take() == [Entries(8, 3, True, tuple(entries(4, 2)))]


@pytest.mark.parametrize(("count", "has_more"), [(0, True), (2, True), (3, False)])
async def test_answer_says_whether_it_has_the_last_entry(count: int, has_more: bool):
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    replicas.journal.read = lambda *_asked: entries(4, count)
    replicas.sessions.received(link, Read(8, 3, EPOCH, 4, 6, 100))
    await asyncio.gather(*replicas.sessions._reading)
    (answer,) = link.take()
    assert isinstance(answer, Entries)
    assert answer.has_more is has_more


@pytest.mark.parametrize("error", [CorruptError("changed on disk"), OSError("cannot be read")])
async def test_damage_of_a_read_is_reported_and_not_answered(error: Exception):
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)

    def fail(*_asked: int) -> list[Entry]:
        raise error

    replicas.journal.read = fail
    replicas.sessions.received(link, Read(8, 3, EPOCH, 0, 0, 100))
    await asyncio.gather(*replicas.sessions._reading)
    assert replicas.damages == [(3, error)]
    assert link.take() == []


async def test_few_reads_are_answered_at_the_same_time():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    lock, running, most = threading.Lock(), [0], [0]
    all_run = threading.Barrier(READS_MAX)

    def read(*_asked: int) -> list[Entry]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        all_run.wait()
        with lock:
            running[0] -= 1
        return []

    replicas.journal.read = read
    for number in range(2 * READS_MAX):
        replicas.sessions.received(link, Read(number, 3, EPOCH, 0, 0, 100))
    await asyncio.gather(*replicas.sessions._reading)
    assert most == [READS_MAX]
    assert len(link.take()) == 2 * READS_MAX
    assert replicas.sessions._reading == set()


async def test_close_ends_reads_and_their_threads():
    replicas = Replicas()
    link = replicas.link()
    await replicas.opened(link)
    ends = threading.Event()

    def read(*_asked: int) -> list[Entry]:
        ends.wait()
        return []

    replicas.journal.read = read
    for number in range(3):
        replicas.sessions.received(link, Read(number, 3, EPOCH, 0, 0, 100))
    tasks = list(replicas.sessions._reading)
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(replicas.sessions.close())
    for _ in range(5):
        await asyncio.sleep(0)
    ends.set()
    await closing
    assert [task.cancelled() for task in tasks] == [True] * 3
    assert link.take() == []
    with pytest.raises(RuntimeError, match="after shutdown"):
        await replicas.sessions._threads.run(int)


class Records:
    """Log records that name another member; `asked` are the reads."""

    def __init__(self, last_epoch: int = EPOCH + 1) -> None:
        members = (ReplicaId(bytes(16)), ReplicaId(bytes([1]) * 16))
        self.log = ContainerLog(3, LogState.OPEN, members, (LedgerStart(last_epoch, 0),))
        self.asked: list[list[int]] = []

    def read_many(self, containers: list[int]) -> dict[int, StoredLog]:
        self.asked.append(containers)
        return {container: StoredLog(self.log, 1) for container in containers}


async def test_copy_from_before_the_start_is_idle_since_then(monkeypatch: pytest.MonkeyPatch):
    loop, now_s = asyncio.get_running_loop(), [100.0]
    records, time = Records(), loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s[0])
    try:
        replicas = Replicas(recovered={3: RecoveredLog(EPOCH, runs=(HeldRun(EPOCH, 0, 5, 5),))})
        for now_s[0] in (159.9, 160.0):
            await replicas.sessions.drop_unneeded(cast("ContainerLogRecords", records), idle_s=60.0)
            assert replicas.sessions.log(3).is_empty == (now_s[0] == 160.0)
    finally:
        monkeypatch.setattr(loop, "time", time)
    assert records.asked == [[3]]


async def test_only_idle_copies_with_entries_are_looked_up(monkeypatch: pytest.MonkeyPatch):
    loop, now_s = asyncio.get_running_loop(), [100.0]
    replicas, records, time = Replicas(), Records(), loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s[0])
    try:
        link = replicas.link()
        for container in (3, 4, 5):
            await replicas.opened(link, container)
        for container in (3, 4):
            replicas.append(link, 0, container)
        now_s[0] = 110.0
        replicas.append(link, 1, container=4)
        await replicas.synced()
        now_s[0] = 160.0
        await replicas.sessions.drop_unneeded(cast("ContainerLogRecords", records), idle_s=60.0)
    finally:
        monkeypatch.setattr(loop, "time", time)
    assert records.asked == [[3]], "container 4 is not idle, and container 5 has no entry"
    assert [replicas.sessions.log(each).is_empty for each in (3, 4)] == [True, False]


async def test_all_idle_copies_are_dropped_after_one_read():
    replicas, records = Replicas(), Records()
    link = replicas.link()
    for container in (3, 4, 5):
        await replicas.opened(link, container)
        replicas.append(link, 0, container)
        await replicas.synced()
    await replicas.sessions.drop_unneeded(cast("ContainerLogRecords", records), idle_s=0)
    assert records.asked == [[3, 4, 5]]
    assert all(replicas.sessions.log(each).is_empty for each in (3, 4, 5))


async def test_no_record_is_read_without_an_idle_copy():
    replicas, records = Replicas(), Records()
    await replicas.sessions.drop_unneeded(cast("ContainerLogRecords", records), idle_s=0)
    assert records.asked == []


async def test_copy_of_the_promised_owner_is_kept():
    """Its write that adds this replica may be under way."""
    replicas, records = Replicas(), Records(last_epoch=EPOCH)
    link = replicas.link()
    await replicas.opened(link)
    replicas.append(link, 0)
    await replicas.synced()
    await replicas.sessions.drop_unneeded(cast("ContainerLogRecords", records), idle_s=0)
    assert (len(records.asked), replicas.sessions.log(3).is_empty) == (1, False)

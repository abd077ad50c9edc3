"""The replicas of one process: the copies that its journal holds of the logs of all containers.

This is the shell of `ReplicaLog`. It gives the machine what arrives over links, writes what the machine queues to the
journal, and tells owners what is durable, with one ACK per link and commit. All of it runs on the event loop, so that
nothing comes between looking at a promise and queueing a record.

The process's own containers use the same replicas, through a link that is not a network.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, Codec, RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    NACK_DISK_FULL,
    Ack,
    AckItem,
    Drop,
    Entries,
    Entry,
    HeldRun,
    Nack,
    Open,
    Pulse,
    Read,
)
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.replication_health import is_copy_unneeded
from headrace.ports.replicas import OwnerLink, OwnerMessage
from headrace.replication.bounds import RECEIVED_BYTES_MAX
from headrace.replication.effects import Answer, AnswerFromJournal, Held, QueueRecord, ReplicaEffect
from headrace.replication.replica_log import RecoveredLog, ReplicaLog
from headrace.segmentstore.log.appended_entries import LocalThreads
from headrace.segmentstore.log.journal.journal_index import JournalIndex, KnownLog
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore, keep_ledgers

if TYPE_CHECKING:
    from typing_extensions import Buffer


_log = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 1 << 20
"""Of the entries in one answer to a READ, but at least one entry: it has to fit into a message."""

IDLE_S: Final = 60.0
"""A copy of which nothing is heard for this long is looked up. An owner without appends sends nothing either."""

READS_MAX: Final = 4
"""READs that are answered at the same time: each takes memory for its answer, and reads the disk that entries need."""


class ReplicaSessions:
    """The replicas of one journal. `recovered` is what the journal knew of each container when it was started.

    `on_damage` is called with the container and the error when an entry that the journal holds cannot be read any more.
    Only a new start of the process finds out what is damaged.
    """

    def __init__(
        self,
        journal: EntryJournal,
        recovered: Mapping[int, RecoveredLog],
        on_damage: Callable[[int, Exception], None],
        *,
        received_bytes_max: int = RECEIVED_BYTES_MAX,
    ) -> None:
        self.replica = ReplicaId(journal.replica_id)
        self._journal = journal
        self._on_damage = on_damage
        self._loop = asyncio.get_running_loop()
        self._received_bytes_max = received_bytes_max
        self._received_bytes = 0
        self._is_paused = False
        self._links: dict[int, OwnerLink] = {}
        self._replicas = {each: _Replica(self, each, log) for each, log in recovered.items()}
        self._touched: dict[int, _Replica] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._threads = LocalThreads()
        self._has_room = True

    @property
    def received_bytes(self) -> int:
        """Received from other processes, and not on disk yet."""
        return self._received_bytes

    def now_s(self) -> float:
        return self._loop.time()

    def log(self, container: int) -> ReplicaLog:
        """The state of a container's replica."""
        return self._replica(container).log

    # ReplicaHost

    def connected(self, link: OwnerLink) -> None:
        self._links[link.number] = link
        if self._is_paused:
            link.pause()

    def lost(self, link: OwnerLink) -> None:
        self._links.pop(link.number, None)
        for replica in self._replicas.values():
            replica.log.link_lost(link.number)

    def received(self, link: OwnerLink, message: OwnerMessage | Entry) -> None:
        match message:
            case Entry():
                self._receive_entry(link, message)
            case Open():
                replica = self._heard(message.container)
                replica.apply(replica.log.open(link.number, message))
                if (
                    replica.log.session is not None and replica.log.knows_chain
                ):  # entries of owners that were fenced must not keep files
                    self._queue(keep_ledgers(replica.container, replica.log.chain, ignore))
            case Read():
                replica = self._heard(message.container)
                replica.apply(replica.log.read(link.number, message))
            case Drop():
                replica = self._heard(message.container)
                replica.apply(replica.log.drop(message))
            case Pulse():
                for item in message.items:
                    replica = self._heard(item.container)
                    replica.apply(replica.log.pulse(link.number, item.acknowledged_before, item.truncated_before))

    def take_entry(self, link: int, header: RecordHeader, parts: Sequence[Buffer]) -> None:
        """An entry of an owner in this process, whose payload may consist of several parts."""
        replica = self._heard(header.container)
        replica.apply(replica.log.entry(link, header, parts))

    def look_at_space(self) -> None:
        """Find out whether the volume has room for entries of other processes; call it about every second."""
        self._has_room = not self._journal.space().is_exhausted

    async def drop_unneeded(self, records: ContainerLogRecords, idle_s: float = IDLE_S) -> None:
        """Drop what no log needs: this replica was removed from its log while it was away.

        Asks only for containers of which nothing was heard for `idle_s`, in one batch read, and keeps a copy of which
        something is heard meanwhile.

        Raises:
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        asked_s = self._loop.time()
        idle = {
            container: replica
            for container, replica in self._replicas.items()
            if not replica.log.is_empty and asked_s - replica.heard_s >= idle_s
        }
        if not idle:
            return
        logs = await asyncio.to_thread(records.read_many, list(idle))
        for container, replica in idle.items():
            is_unneeded = is_copy_unneeded(logs[container].log, self.replica, replica.log.promise)
            if is_unneeded and replica.heard_s <= asked_s:
                _log.info("event=replica_dropped container=%d", container)
                replica.apply(replica.log.discard())

    async def close(self) -> None:
        """End what is read for other processes. The links are closed by their listener."""
        for task in list(self._reading):
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._threads.close()

    # Internal

    def _replica(self, container: int) -> _Replica:
        replica = self._replicas.get(container)
        if replica is None:
            replica = self._replicas[container] = _Replica(self, container, RecoveredLog())
        return replica

    def _heard(self, container: int) -> _Replica:
        """The replica of which an owner has just sent something."""
        replica = self._replica(container)
        replica.heard_s = self._loop.time()
        return replica

    def _receive_entry(self, link: OwnerLink, message: Entry) -> None:
        replica = self._heard(message.header.container)
        session = replica.log.session
        if not self._has_room and session is not None:
            link.send(Nack(replica.container, session.number, NACK_DISK_FULL, 0))
            return
        parts = (message.payload,) if len(message.payload) else ()
        replica.apply(replica.log.entry(link.number, message.header, parts), received=True)

    def submit(self, replica: _Replica, header: RecordHeader, parts: Sequence[Buffer], size: int) -> None:
        """Queue a record, of which `size` bytes came from another process."""
        pending = PendingRecord(
            header.kind,
            header.container,
            header.epoch,
            header.writer_epoch,
            header.entry,
            header.truncated_before,
            header.acknowledged_before,
            parts,
            header.length,
            replica.record_durable,
            None,
            header.payload_checksum if header.kind is RecordKind.ENTRY else None,
            codec=Codec(header.codec),
        )
        if not self._queue(pending):
            return
        replica.sizes.append(size)
        if size:
            self._received_bytes += size
            if self._received_bytes > self._received_bytes_max and not self._is_paused:
                self._pause()

    def _queue(self, pending: PendingRecord) -> bool:
        """Queue a record; return False if the journal has failed.

        Its process is about to end then, and messages that arrive until it does are dropped.
        """
        try:
            self._journal.submit(pending)
        except UnavailableError:
            return False
        return True

    def durable(self, replica: _Replica, size: int) -> None:
        """One more record of a replica is durable. Owners are told when the whole commit was reported."""
        if size:
            self._received_bytes -= size
        if not self._touched:
            self._loop.call_soon(self._tell)
        self._touched[replica.container] = replica

    def _tell(self) -> None:
        touched, self._touched = self._touched, {}
        acks: dict[int, list[AckItem]] = {}
        for replica in touched.values():
            replica.apply(replica.log.committed(replica.durable_records), acks)
        for number, items in acks.items():
            self.answer(number, Ack(tuple(items)))
        if self._is_paused and self._received_bytes <= self._received_bytes_max // 2:
            self._is_paused = False
            for link in list(self._links.values()):
                link.resume()

    def answer(self, number: int, message: Ack | Nack | Entries) -> None:
        link = self._links.get(number)
        if link is not None:
            link.send(message)

    def _pause(self) -> None:
        self._is_paused = True
        for link in list(self._links.values()):
            link.pause()

    def read(self, link: int, message: Read) -> None:
        """Answer a READ in the background, from the journal."""
        task = self._loop.create_task(self._read(link, message))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, link: int, message: Read) -> None:
        bytes_max = min(message.bytes_max, ANSWER_BYTES_MAX)
        try:
            async with self._reads:
                read = partial(
                    self._journal.reader.entries_to_send,
                    message.container,
                    message.epoch,
                    message.first,
                    message.last,
                    bytes_max,
                )
                entries = await self._threads.run(read)
        except (CorruptError, OSError) as error:
            self._on_damage(message.container, error)
            return
        is_all = bool(entries) and entries[-1].header.entry == message.last
        self.answer(link, Entries(message.request, message.container, not is_all, tuple(entries)))


class _Replica:
    """One container's machine, and its records that are in the journal's queue."""

    __slots__ = ("_sessions", "container", "durable_records", "heard_s", "log", "sizes")

    def __init__(self, sessions: ReplicaSessions, container: int, recovered: RecoveredLog) -> None:
        self.container = container
        self.log = ReplicaLog(container, recovered)
        self.durable_records = 0
        self.sizes: deque[int] = deque()
        self.heard_s = sessions.now_s()
        self._sessions = sessions

    def record_durable(self, error: Exception | None) -> None:
        """The oldest queued record is durable; after an error the process ends."""
        size = self.sizes.popleft()
        if error is None:
            self.durable_records += 1
            self._sessions.durable(self, size)

    def apply(
        self, effects: list[ReplicaEffect], acks: dict[int, list[AckItem]] | None = None, *, received: bool = False
    ) -> None:
        sessions = self._sessions
        for effect in effects:
            match effect:
                case QueueRecord(header, parts):
                    sessions.submit(self, header, parts, RECORD_HEADER_BYTES + header.length if received else 0)
                case Held(link, session, epoch, last):
                    item = AckItem(self.container, session, epoch, last + 1)
                    if acks is None:
                        sessions.answer(link, Ack((item,)))
                    else:
                        acks.setdefault(link, []).append(item)
                case Answer(link, message):
                    sessions.answer(link, message)  # type: ignore[arg-type]
                case AnswerFromJournal(link, read):
                    sessions.read(link, read)


# What a replica knows of each container after a start, read from the index of its journal.


class IndexedJournal(Protocol):
    """A journal that was loaded."""

    @property
    def index(self) -> JournalIndex: ...


def recovered_logs(journal: IndexedJournal) -> dict[int, RecoveredLog]:
    """The durable state of every container that the journal has a record of, by container.

    Call it after the start of the journal and before anything is queued.
    """
    return {container: _recovered(known) for container, known in journal.index.known().items()}


def _recovered(known: KnownLog) -> RecoveredLog:
    runs = [HeldRun(ledger.epoch, ledger.first_entry, ledger.next_entry, ledger.had_before) for ledger in known.ledgers]
    return RecoveredLog(
        known.promise,
        known.truncated_before,
        known.witness,
        tuple(run for run in runs if run.start < run.had_end),
    )

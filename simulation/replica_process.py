"""The shell of the ReplicaLogs of one process: one journal, group commits, one ACK per link and commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from headrace.codec.replica_messages import (
    NACK_DISK_FULL,
    Ack,
    AckItem,
    Drop,
    Entries,
    Entry,
    Nack,
    Open,
    Opened,
    Pulse,
    Read,
    ReplicaMessage,
)
from headrace.model.ensembles import ReplicaId
from headrace.replication.effects import Answer, AnswerFromJournal, Held, QueueRecord, ReplicaEffect
from headrace.replication.recovered_logs import RecoveredLog
from headrace.replication.replica_log import ReplicaLog
from simulation.disk import DiskError
from simulation.journal import ReplicaJournal
from simulation.network import Address

REPLICA_MESSAGES: Final = (Open, Entry, Read, Pulse, Drop)


class ReplicaObserver(Protocol):
    """Looks at what a replica does, on behalf of the checkers."""

    def taken(self, replica: ReplicaId, log: ReplicaLog, effect: QueueRecord) -> None: ...

    def told(self, replica: ReplicaId, log: ReplicaLog, message: Opened | Nack) -> None: ...

    def held(self, replica: ReplicaId, log: ReplicaLog, effect: Held) -> None: ...


class ReplicaProcess:
    """Everything of one process that answers owners."""

    def __init__(
        self,
        journal: ReplicaJournal,
        send: Callable[[Address, ReplicaMessage], None],
        schedule_commit: Callable[[], None],
        fail: Callable[[str], None],
        observer: ReplicaObserver,
    ) -> None:
        self.journal = journal
        self.is_committing = False
        self._send = send
        self._schedule_commit = schedule_commit
        self._fail = fail
        self._observer = observer
        self._recovered = dict(journal.recovered())
        self._logs: dict[int, ReplicaLog] = {}

    def log(self, container: int) -> ReplicaLog:
        if container not in self._logs:
            self._logs[container] = ReplicaLog(container, self._recovered.get(container, RecoveredLog()))
        return self._logs[container]

    def receive(self, sender: Address, message: ReplicaMessage) -> None:
        link = _link(sender)
        match message:
            case Open():
                self._apply(self.log(message.container), self.log(message.container).open(link, message))
            case Entry():
                log = self.log(message.header.container)
                if self.journal.is_full and log.session is not None:
                    refusal = Nack(log.container, log.session.number, NACK_DISK_FULL, 0)
                    self._observer.told(self.journal.replica, log, refusal)
                    self._send(sender, refusal)
                else:
                    self._apply(log, log.entry(link, message))
            case Read():
                self._apply(self.log(message.container), self.log(message.container).read(link, message))
            case Pulse():
                for item in message.items:
                    log = self.log(item.container)
                    self._apply(log, log.pulse(link, item.confirmed, item.truncated))
            case Drop():
                self._apply(self.log(message.container), self.log(message.container).drop(message))
            case _:
                raise AssertionError(f"a replica received {message}")

    def begin_commit(self) -> bool:
        """Write what is queued. False if there is nothing, or if the process has failed."""
        try:
            return self.journal.begin_commit()
        except DiskError as error:
            self._fail(str(error))
            return False

    def end_commit(self) -> None:
        """The commit was synced, or the journal fails and with it the process."""
        try:
            durable = self.journal.end_commit()
        except DiskError as error:
            self._fail(str(error))
            return
        acks: dict[Address, list[AckItem]] = {}
        for container, count in sorted(durable.items()):
            log = self.log(container)
            self._apply(log, log.committed(count), acks)
        for address, items in acks.items():
            self._send(address, Ack(tuple(items)))

    def _apply(
        self, log: ReplicaLog, effects: list[ReplicaEffect], acks: dict[Address, list[AckItem]] | None = None
    ) -> None:
        for effect in effects:
            match effect:
                case QueueRecord(header, payload):
                    self._observer.taken(self.journal.replica, log, effect)
                    self.journal.queue(header, payload)
                    self._schedule_commit()
                case Answer(link, message):
                    self._observer.told(self.journal.replica, log, message)
                    self._send(_address(link), message)
                case Held(link, session, epoch, last):
                    self._observer.held(self.journal.replica, log, effect)
                    item = AckItem(log.container, session, epoch, last + 1)
                    if acks is None:
                        self._send(_address(link), Ack((item,)))
                    else:
                        acks.setdefault(_address(link), []).append(item)
                case AnswerFromJournal(link, message):
                    self._answer_read(_address(link), message)

    def _answer_read(self, target: Address, message: Read) -> None:
        try:
            found = self.journal.read(message.container, message.epoch, message.first, message.last, message.bytes_max)
        except DiskError as error:
            self._fail(str(error))
            return
        is_all = bool(found) and found[-1].header.entry == message.last
        self._send(target, Entries(message.request, not is_all, tuple(found)))


def _link(address: Address) -> int:
    return address.store << 32 | address.incarnation


def _address(link: int) -> Address:
    return Address(link >> 32, link & 0xFFFFFFFF)

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
from headrace.model.container_logs import ContainerLog, ReplicaId
from headrace.model.replication_health import is_copy_unneeded
from headrace.replication.effects import Answer, AnswerFromJournal, Held, QueueRecord, ReplicaEffect
from headrace.replication.replica_log import RecoveredLog, ReplicaLog
from simulation.disk import DiskError
from simulation.journal import ReplicaJournal
from simulation.network import Address, Link

REPLICA_MESSAGES: Final = (Open, Entry, Read, Pulse, Drop)


class ReplicaObserver(Protocol):
    """Looks at what a replica does, on behalf of the checkers."""

    def taken(self, replica: ReplicaId, log: ReplicaLog, effect: QueueRecord) -> None: ...

    def reported(self, replica: ReplicaId, log: ReplicaLog, message: Opened | Nack) -> None: ...

    def held(self, replica: ReplicaId, log: ReplicaLog, effect: Held) -> None: ...

    def discarded(self) -> None: ...


class ReplicaProcess:
    """Everything of one process that answers owners."""

    def __init__(
        self,
        journal: ReplicaJournal,
        send: Callable[[Address, ReplicaMessage], None],
        schedule_commit: Callable[[], None],
        fail: Callable[[str], None],
        observer: ReplicaObserver,
        now: Callable[[], int],
    ) -> None:
        self.journal = journal
        self.is_committing = False
        self._send = send
        self._schedule_commit = schedule_commit
        self._fail = fail
        self._observer = observer
        self._now = now
        self._heard: dict[int, int] = {}
        self._recovered = dict(journal.recovered())
        self._logs: dict[int, ReplicaLog] = {}

    def log(self, container: int) -> ReplicaLog:
        if container not in self._logs:
            self._logs[container] = ReplicaLog(container, self._recovered.get(container, RecoveredLog()))
            self._heard[container] = self._now()
        return self._logs[container]

    def idle(self, duration: int) -> list[int]:
        """The containers of which this replica has entries, and has heard nothing for so long."""
        logs = [self.log(container) for container in sorted({*self._recovered, *self._logs})]
        now = self._now()
        return [log.container for log in logs if not log.is_empty and now - self._heard[log.container] >= duration]

    def discard_unneeded(self, container: int, record: ContainerLog | None, asked: int) -> None:
        """Discard a copy that was idle at the time `asked`, if the record that was read then does not need it."""
        log = self.log(container)
        is_unneeded = is_copy_unneeded(record, self.journal.replica, log.promise)
        if is_unneeded and not self._was_heard_since(container, asked):
            self._apply(log, log.discard())
            self._observer.discarded()

    def _was_heard_since(self, container: int, asked: int) -> bool:
        return self._heard[container] > asked

    def link_lost(self, link: Link) -> None:
        """A connection of an owner has ended."""
        for log in self._logs.values():
            log.link_lost(link.number)

    def receive(self, sender: Address, link: int, message: ReplicaMessage) -> None:
        match message:
            case Open():
                log = self._heard_log(message.container)
                self._apply(log, log.open(link, message))
                if log.session is not None and log.knows_chain:
                    self.journal.keep_ledgers(log.container, log.chain)
            case Entry():
                log = self._heard_log(message.header.container)
                if self.journal.is_full and log.session is not None:
                    refusal = Nack(log.container, log.session.number, NACK_DISK_FULL, 0)
                    self._observer.reported(self.journal.replica, log, refusal)
                    self._send(sender, refusal)
                else:
                    self._apply(log, log.entry(link, message.header, (message.payload,)))
            case Read():
                log = self._heard_log(message.container)
                self._apply(log, log.read(link, message))
            case Pulse():
                for item in message.items:
                    log = self._heard_log(item.container)
                    self._apply(log, log.pulse(link, item.acknowledged_before, item.truncated_before))
            case Drop():
                log = self._heard_log(message.container)
                self._apply(log, log.drop(message))
            case _:
                raise AssertionError(f"a replica received {message}")

    def _heard_log(self, container: int) -> ReplicaLog:
        """The log of which an owner has just sent something."""
        log = self.log(container)
        self._heard[container] = self._now()
        return log

    @property
    def has_queued(self) -> bool:
        """Whether something waits for the next commit."""
        return self.journal.has_queued

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
                case QueueRecord(header, parts):
                    self._observer.taken(self.journal.replica, log, effect)
                    self.journal.queue(header, parts)
                    self._schedule_commit()
                case Answer(link, message):
                    self._observer.reported(self.journal.replica, log, message)
                    self._send(Link.address_of(link), message)
                case Held(link, session, epoch, last):
                    self._observer.held(self.journal.replica, log, effect)
                    item = AckItem(log.container, session, epoch, last + 1)
                    if acks is None:
                        self._send(Link.address_of(link), Ack((item,)))
                    else:
                        acks.setdefault(Link.address_of(link), []).append(item)
                case AnswerFromJournal(link, message):
                    self._answer_read(Link.address_of(link), message)

    def _answer_read(self, target: Address, message: Read) -> None:
        try:
            found = self.journal.read(message.container, message.epoch, message.first, message.last, message.bytes_max)
        except DiskError as error:
            self._fail(str(error))
            return
        is_all = bool(found) and found[-1].header.entry == message.last
        self._send(target, Entries(message.request, message.container, not is_all, tuple(found)))

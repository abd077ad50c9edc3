"""The shell of LogRecovery and LedgerWriter: one container that a process takes over and serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, cast

from crc32c import crc32c

from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import (
    Ack,
    Drop,
    Entries,
    Entry,
    Nack,
    Opened,
    Pulse,
    PulseItem,
    ReplicaMessage,
)
from headrace.model.container_logs import COPIES, ContainerLog, ReplicaId
from headrace.model.replica_placement import Placement
from headrace.replication.effects import (
    Acknowledge,
    Blocked,
    DropMember,
    Fail,
    OpenMember,
    ReadEntries,
    ReadRecord,
    Release,
    Send,
    SendCopies,
    SendPulse,
    Serve,
    Source,
    Suspect,
    WriteClaim,
    WriteRecord,
    WriterEffect,
)
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.log_recovery import LogRecovery
from simulation.disk import DiskError
from simulation.journal import ReplicaJournal
from simulation.metadata import Metadata, Outcome
from simulation.network import Address
from simulation.payload_memory import PayloadMemory
from simulation.swarm import Swarm

_END_WITHIN_MS: Final = 2_000


class OwnerObserver(Protocol):
    """Looks at what an owner does, on behalf of the checkers."""

    def appended(self, owner: Owner, entry: int, payload: bytes) -> None: ...

    def acknowledged(self, owner: Owner, up_to: int) -> None: ...

    def serves(self, owner: Owner, effect: Serve) -> None: ...

    def flushed(self, owner: Owner, end: int) -> None: ...

    def state(self, name: str) -> None: ...

    def effect_after_failure(self, owner: Owner, effect: WriterEffect) -> None: ...


class Owner:
    """One attempt of one process to own a container, from its claim until it fails."""

    def __init__(
        self,
        container: int,
        address: Address,
        journal: ReplicaJournal,
        metadata: Metadata,
        swarm: Swarm,
        send: Callable[[ReplicaId, ReplicaMessage], bool],
        observer: OwnerObserver,
        wanted: tuple[ReplicaId, ...],
        zones: Mapping[ReplicaId, str],
        now_ms: int,
    ) -> None:
        self.container = container
        self.address = address
        self.journal = journal
        self.epoch = 0
        self.writer: LedgerWriter | None = None
        self.has_failed = False
        self._metadata = metadata
        self._swarm = swarm
        self._send = send
        self._observer = observer
        self._memory = PayloadMemory()
        self._unreleased: dict[int, Entry] = {}
        self._recovery = LogRecovery(container, journal.replica, wanted, zones, COPIES, swarm.recovery, now_ms)
        self._now_ms = now_ms
        self._ends_by_ms: int | None = None
        self._is_ending = False

    @property
    def machine(self) -> LogRecovery | LedgerWriter:
        return self.writer or self._recovery

    def start(self) -> None:
        def looked(version: int | None) -> None:
            if version is None:
                self.has_failed = True
            elif not self.has_failed:
                self._apply(self._recovery.start(version))

        self._metadata.read_claim(self.address, self.container, looked)

    def tick(self, now_ms: int, placement: Placement, wanted: tuple[ReplicaId, ...]) -> None:
        if self.has_failed:
            return
        self._now_ms = now_ms
        if self.writer is not None:
            self.writer.place(placement)
        else:
            self._apply(self._recovery.want(wanted, placement.zones))
        self._apply(self.machine.tick(now_ms))
        if self._ends_by_ms is not None and not self.has_failed:
            self._end_if_possible(self._ends_by_ms)

    @property
    def takes_entries(self) -> bool:
        """Whether clients would append: the log is open and its entries that wait for members are within the bound."""
        writer = self.writer
        return writer is not None and not writer.is_closed and not writer.has_failed and writer.unacknowledged_fill < 1

    def append(self, payload: bytes) -> None:
        assert self.writer is not None
        entry = self.writer.next_entry
        header = RecordHeader(
            RecordKind.ENTRY,
            self.container,
            self.epoch,
            self.epoch,
            entry,
            self.writer.truncated_before,
            self.writer.acknowledged_entry + 1,
            len(payload),
            crc32c(payload),
        )
        self._unreleased[entry] = Entry(header, self._memory.hold(payload))
        self._observer.appended(self, entry, payload)
        numbered, effects = self.writer.append(len(payload))
        assert numbered == entry
        self._apply(effects)

    def congested(self, replica: ReplicaId) -> None:
        """The link to a replica does not keep up."""
        if self.writer is not None:
            self.writer.congested(replica)

    def end(self) -> None:
        """End the ownership cleanly: tier 2 gets everything, then the record says that the log is empty."""
        if self.writer is not None and self._ends_by_ms is None:
            self.writer.close()
            self._ends_by_ms = self._now_ms + _END_WITHIN_MS

    def _end_if_possible(self, by_ms: int) -> None:
        assert self.writer is not None
        final = self.writer.final_record
        if self._now_ms >= by_ms:
            self.has_failed = True  # the next owner recovers the log
        elif final is not None and not self._is_ending:
            self._is_ending = True
            log, version = final
            self._observer.flushed(self, self.writer.next_entry)
            self._metadata.write_log(self.address, self.container, log, version, self.epoch, self._end_answered)

    def _end_answered(self, answer: tuple[Outcome, int]) -> None:
        self._is_ending = False
        if self.has_failed or self.writer is None:
            return
        if answer[0] is Outcome.WRITTEN:
            self._apply(self.writer.ended())
        elif answer[0] is not Outcome.UNKNOWN:
            self.has_failed = True

    def receive(self, replica: ReplicaId, message: ReplicaMessage) -> None:
        if self.has_failed:
            return
        machine = self.machine
        match message:
            case Opened():
                self._apply(machine.opened(replica, message))
            case Nack():
                self._apply(machine.refused(replica, message))
            case Ack(items):
                for item in items:
                    if item.container == self.container:
                        last = item.next_entry - 1
                        self._apply(self.machine.acknowledged(replica, item.session, item.epoch, last))
            case Entries():
                if isinstance(machine, LogRecovery):
                    self._apply(machine.entries(message.request, message))
            case _:
                raise AssertionError(f"an owner received {message}")

    def link_lost(self, replica: ReplicaId) -> None:
        if not self.has_failed:
            self._apply(self.machine.link_lost(replica))

    # Effects.

    def _apply(self, effects: Sequence[WriterEffect]) -> None:
        for effect in effects:
            if self.has_failed:
                self._observer.effect_after_failure(self, effect)
                return
            self._apply_one(effect)

    def _apply_one(self, effect: WriterEffect) -> None:
        match effect:
            case OpenMember(member, message):
                if not self._send(member, message):
                    self.link_lost(member)
            case Send():
                self._send_entries(effect)
            case SendCopies(member, entries):
                for entry in entries:
                    self._send(member, self._stamped(entry))
            case ReadEntries(member, message):
                self._send(member, message)
            case SendPulse(member, acknowledged_entry, truncated_before):
                self._send(member, Pulse(0, 0, (PulseItem(self.container, acknowledged_entry + 1, truncated_before),)))
            case DropMember(member, session):
                self._send(member, Drop(self.container, session, self.epoch))
                self._observer.state("member dropped")
            case Acknowledge(up_to):
                self._observer.acknowledged(self, up_to)
            case Release(up_to):
                for number in [each for each in self._unreleased if each <= up_to]:
                    self._memory.release(cast("memoryview", self._unreleased.pop(number).payload))
            case WriteClaim(version):
                self._metadata.write_claim(self.address, self.container, version, self._claim_answered)
            case WriteRecord(log, version, claim_epoch):
                self._metadata.write_log(self.address, self.container, log, version, claim_epoch, self._record_answered)
            case ReadRecord():
                self._metadata.read_log(self.address, self.container, self._record_read)
            case Suspect():
                self._observer.state("member suspected")
            case Blocked():
                self._observer.state("recovery blocked")
            case Serve():
                self._serve(effect)
            case Fail():
                self.has_failed = True
                self._observer.state("owner fenced")

    def _serve(self, effect: Serve) -> None:
        self._observer.serves(self, effect)
        if self.has_failed:
            return
        self.writer = LedgerWriter(
            self.container,
            self.journal.replica,
            effect.log,
            effect.version,
            effect.truncated_before,
            self._recovery.sessions,
            self._swarm.writer,
            self._now_ms,
        )
        self._apply(self.writer.start())

    def _send_entries(self, effect: Send) -> None:
        machine = self.machine
        if effect.source is Source.MEMORY:
            for number in range(effect.first, effect.last + 1):
                entry = self._unreleased[number]
                if effect.member != self.journal.replica:  # links copy what waits before memory is released
                    entry = Entry(entry.header, bytes(entry.payload))
                self._send(effect.member, entry)
            return
        last = effect.first - 1
        chain = machine.chain
        epoch = chain.epoch_of(effect.first)
        if epoch is not None:
            bounds = chain.bounds(epoch)
            assert bounds is not None
            end = effect.last if bounds[1] is None else min(effect.last, bounds[1] - 1)
            try:
                found = self.journal.read(self.container, epoch, effect.first, end, effect.bytes_max)
            except DiskError:
                self.has_failed = True
                return
            for each in found:
                self._send(effect.member, self._stamped(each))
                last = each.header.entry
        self._apply(machine.sent(effect.member, machine.session_of(effect.member), last))

    def _stamped(self, entry: Entry) -> Entry:
        """The entry as this owner sends it: the writer is this owner, also of entries of earlier ledgers."""
        return Entry(entry.header._replace(writer_epoch=self.epoch), entry.payload)

    # Answers of the metadata store.

    def _claim_answered(self, answer: tuple[Outcome, int]) -> None:
        outcome, epoch = answer
        if self.has_failed:
            return
        if outcome is not Outcome.WRITTEN:
            self.has_failed = True
            return
        self.epoch = epoch
        self._apply(self._recovery.claimed(epoch))

    def _record_read(self, answer: tuple[ContainerLog | None, int] | None) -> None:
        if self.has_failed:
            return
        if self.writer is None:
            recovery = self._recovery
            self._apply(recovery.request_unknown() if answer is None else recovery.record_read(*answer))
            return
        if answer is None or answer[0] is None:
            self._apply(self.writer.record_unknown())
        else:
            self._apply(self.writer.record_read(answer[0], answer[1]))

    def _record_answered(self, answer: tuple[Outcome, int]) -> None:
        outcome, version = answer
        if self.has_failed:
            return
        machine = self.machine
        self._observer.state(f"record {outcome.value}")
        match outcome:
            case Outcome.WRITTEN:
                self._apply(machine.record_written(version))
            case Outcome.CONFLICT:
                self._apply(machine.record_conflict())
            case Outcome.CLAIM_LOST:
                self._apply(machine.claim_lost())
            case Outcome.UNKNOWN:
                unknown = machine.record_unknown if isinstance(machine, LedgerWriter) else machine.request_unknown
                self._apply(unknown())

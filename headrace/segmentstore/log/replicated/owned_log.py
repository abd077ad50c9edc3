"""One container's log at its owner: the shell of `LogRecovery`, and of `LedgerWriter` once the log is recovered.

The machines decide; this module sends what they ask for, keeps the memory of entries until it is not needed any more,
and calls the callbacks of appends. Everything runs on the event loop, except reads of the journal and requests to the
metadata store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordHeader, RecordKind
from headrace.codec.replica_messages import Drop, Entries, Entry, Nack, Opened, Pulse, PulseItem
from headrace.metadata.container_log import LogWriteOutcome
from headrace.model.container_logs import ContainerLog, ReplicaId
from headrace.model.errors import CorruptError, FencedError, HeadraceError, UnavailableError
from headrace.ports.ledger import Done, Released
from headrace.replication.bounds import LINK_UNSENT_BYTES_MAX
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
from headrace.segmentstore.log.appended_entries import AppendedEntries, EncodedEntry, EntryEncoder, SentEntry
from headrace.segmentstore.log.record_requests import RecordRequests
from headrace.segmentstore.log.replicated.shared_log_resources import LogPlan, SharedLogResources

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

RETIRE_PATIENCE_S: Final = 2.0
"""For a change of the ensemble to end, before the log is left as it is."""

RETIRE_POLL_S: Final = 0.02


class OwnedLog:
    """The log of a container from its claim with `epoch` on, until another owner has it.

    `recovered` is resolved when the log can be read and appended to. `sessions` is the number of the last OPEN that
    this process has sent for the same epoch.
    """

    def __init__(
        self, shared: SharedLogResources, container: int, epoch: int, plan: LogPlan, sessions: int = 0
    ) -> None:
        self.container = container
        self.epoch = epoch
        self.failure: HeadraceError | None = None
        self.is_reported = False
        """Whether the caller of an opening was told that the recovery waits for replicas."""
        self.writer: LedgerWriter | None = None
        self._shared = shared
        self.plan = plan
        self._records = RecordRequests(shared.records, container, epoch)
        self._loop = asyncio.get_running_loop()
        self.recovered: asyncio.Future[None] = self._loop.create_future()
        self._recovery = LogRecovery(
            container,
            shared.members.own,
            plan.wanted,
            plan.placement.zones,
            plan.copies,
            shared.recovery_bounds,
            self._now_ms,
        )
        self._recovery.sessions = sessions
        self._metrics = shared.metrics.begin(container, shared.clock.monotonic_s())
        self._answered_from = ""
        self._effects: deque[WriterEffect] = deque()
        self._is_applying = False
        encoder = EntryEncoder(compresses=shared.compresses)
        threads, now_s = shared.threads, shared.clock.monotonic_s
        self._appended = AppendedEntries(encoder, self._number, self._send_new, self._run, threads, now_s)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def blocked_by(self) -> str | None:
        """Why the recovery makes no progress; None while it does, and once the log is recovered."""
        return None if self.writer is not None else self._recovery.blocked_by

    @property
    def machine(self) -> LogRecovery | LedgerWriter:
        return self.writer or self._recovery

    @property
    def sessions(self) -> int:
        """The number of the last OPEN."""
        return self.machine.sessions

    @property
    def log(self) -> ContainerLog | None:
        """The record that is in force, once the log is recovered."""
        return None if self.writer is None else self.writer.log

    def start(self) -> None:
        """Begin the recovery. The container is claimed already."""
        self._apply(self._recovery.start(0))

    def tick(self, plan: LogPlan) -> None:
        """Let time pass; call it a few times a second."""
        if self.failure is None:
            self.plan = plan
            if self.writer is not None:
                self.writer.place(plan.placement)
            else:
                self._apply(self._recovery.want(plan.wanted, plan.placement.zones))
            self._apply(self.machine.tick(self._now_ms))

    @property
    def next_entry(self) -> int:
        """The number of the next entry. The log is recovered."""
        assert self.writer is not None
        return self.writer.next_entry + self._appended.unnumbered

    def append(self, parts: Sequence[Buffer], length: int, done: Done, released: Released | None) -> int:
        """Number an entry and send it to the members. The caller has checked that the log has not failed."""
        entry = self.next_entry
        self._appended.append(parts, length, done, released)
        return entry

    async def all_released(self) -> None:
        """Return when nothing reads the memory of appended entries any more."""
        await self._appended.all_released()

    async def retire(self) -> None:
        """Write into the record that tier 2 has everything. Without success the next owner recovers the log."""
        try:
            await self._write_end()
        finally:
            self.end(FencedError(f"the log of container {self.container} was closed"))

    async def _write_end(self) -> None:
        writer = self.writer
        if writer is None or self._has_failed() or self._appended.unnumbered:
            return
        writer.close()
        deadline_s = self._loop.time() + RETIRE_PATIENCE_S
        while writer.final_record is None and not self._has_failed() and self._loop.time() < deadline_s:
            await asyncio.sleep(RETIRE_POLL_S)  # until a change of the ensemble has ended
        final = writer.final_record
        if final is not None and await self._records.write(*final) is LogWriteOutcome.WRITTEN:
            self._apply(writer.ended())

    def _has_failed(self) -> bool:
        """Asked where the answer may change during a wait: mypy, and with it compiled code, would not look again."""
        return self.failure is not None

    def end(self, error: HeadraceError) -> None:
        """Stop: no entry is acknowledged any more. The members keep what they have."""
        if self.failure is not None:
            return
        self.failure = error
        for task in list(self._tasks):
            task.cancel()
        if not self.recovered.done():
            self.recovered.set_exception(error)
            self.recovered.exception()  # a failure that no caller waits for is not an error of the loop
        self._loop.call_soon(self._report_failure)
        self._shared.members.detach()
        try:
            # The own journal may still write from the memory of entries, even if another store owns the container now.
            self._shared.journal.when_durable(self._release_all)
        except UnavailableError:
            self._loop.call_soon(self._release_all, None)

    # Answers of replicas

    def received(self, replica: ReplicaId, message: Opened | Nack | Entries) -> None:
        if self.failure is not None:
            return
        machine = self.machine
        match message:
            case Opened():
                self._apply(machine.opened(replica, message))
            case Nack():
                self._shared.metrics.count_nack(message.code)
                self._apply(machine.refused(replica, message))
            case Entries() if isinstance(machine, LogRecovery):
                self._apply(machine.entries(message.request, message))

    def acknowledged(self, replica: ReplicaId, session: int, epoch: int, last: int) -> None:
        if self.failure is None:
            self._answered_from = self.plan.placement.zones.get(replica, "")
            self._apply(self.machine.acknowledged(replica, session, epoch, last))

    def link_lost(self, replica: ReplicaId) -> None:
        if self.failure is None:
            self._apply(self.machine.link_lost(replica))

    def other_replica(self, replica: ReplicaId) -> None:
        if self.failure is None:
            self._apply(self.machine.other_replica(replica))

    # Effects

    @property
    def _now_ms(self) -> int:
        return int(self._shared.clock.monotonic_s() * 1000)

    def _apply(self, effects: Sequence[WriterEffect]) -> None:
        """Apply effects in their order, also if one of them leads to further ones."""
        self._effects.extend(effects)
        if self._is_applying:
            return
        self._is_applying = True
        try:
            while self._effects and self.failure is None:
                self._apply_one(self._effects.popleft())
        finally:
            self._is_applying = False
        self._appended.report()

    def _apply_one(self, effect: WriterEffect) -> None:
        members = self._shared.members
        match effect:
            case Send():
                self._send(effect)
            case Acknowledge(up_to):
                self._metrics.acknowledged(self._appended.acknowledged(up_to), self._answered_from)
            case Release(up_to):
                # What still waits in links is copied, so that the memory is free.
                members.detach()
                self._appended.release(up_to)
            case OpenMember(member, message):
                members.send(member, message)
            case SendPulse(member, last, truncated_before):
                members.send(member, Pulse(0, 0, (PulseItem(self.container, last + 1, truncated_before),)))
            case SendCopies(member, entries):
                for entry in entries:
                    self._send_stored(member, entry)
            case ReadEntries(member, message):
                members.send(member, message)
            case DropMember(member, session):
                members.send(member, Drop(self.container, session, self.epoch))
            case WriteClaim():
                self._apply(self._recovery.claimed(self.epoch))
            case WriteRecord(log, version):
                self._run(self._write_record(log, version))
            case ReadRecord():
                self._run(self._read_record())
            case Suspect(member, reason):
                _log.error(
                    "event=replica_suspected container=%d replica=%s reason=%r", self.container, member.hex(), reason
                )
            case Blocked(reason):
                _log.error("event=log_blocked container=%d epoch=%d reason=%r", self.container, self.epoch, reason)
            case Serve():
                self._serve(effect)
            case Fail(reason):
                _log.warning("event=log_fenced container=%d epoch=%d reason=%r", self.container, self.epoch, reason)
                self.end(FencedError(f"container {self.container} was taken over: {reason}"))

    def _serve(self, effect: Serve) -> None:
        self.writer = writer = LedgerWriter(
            self.container,
            self._shared.members.own,
            effect.log,
            effect.version,
            effect.truncated_before,
            self._recovery.sessions,
            self._shared.writer_bounds,
            self._now_ms,
        )
        writer.place(self.plan.placement)
        self._metrics.recovered(self._shared.clock.monotonic_s(), effect.log.members)
        _log.info(
            "event=log_recovered container=%d epoch=%d truncated=%d next_entry=%d members=%d",
            self.container,
            self.epoch,
            writer.truncated_before,
            writer.next_entry,
            len(effect.log.members),
        )
        if not self.recovered.done():
            self.recovered.set_result(None)
        self._apply(writer.start())

    def _send(self, effect: Send) -> None:
        if effect.source is Source.JOURNAL:
            self._run(self._send_from_journal(effect))
            return
        members, member, unsent = self._shared.members, effect.member, 0
        for entry in range(effect.first, effect.last + 1):
            sent = self._appended.sent(entry)
            unsent = members.send_entry(member, sent.header, sent.parts)
        if unsent > LINK_UNSENT_BYTES_MAX and self.writer is not None:
            self.writer.congested(member)

    def _send_stored(self, member: ReplicaId, entry: Entry) -> int:
        """Send an entry as this owner's, also if it belongs to an earlier ledger."""
        return self._shared.members.send_entry(member, entry.header._replace(writer_epoch=self.epoch), (entry.payload,))

    async def _send_from_journal(self, effect: Send) -> None:
        """Send a window of entries that the own journal has; the machine asks for the next one."""
        machine, shared = self.machine, self._shared
        session = machine.session_of(effect.member)
        last = effect.first - 1
        part = next(machine.chain.parts(effect.first, effect.last + 1), None)
        if part is not None:
            epoch, first, end = part
            async with shared.catch_ups.takeovers if self.writer is None else shared.catch_ups.slots:
                try:
                    entries = shared.journal.reader.entries_to_send
                    read = partial(entries, self.container, epoch, first, end - 1, effect.bytes_max)
                    to_send = await shared.threads.run(read)
                except (CorruptError, OSError) as error:
                    shared.on_damage(self.container, error)
                    return
                if self.failure is not None:
                    return
                for each in to_send:
                    self._send_stored(effect.member, each)
                    last = each.header.entry
                if self.writer is not None:
                    sent_bytes = sum(RECORD_HEADER_BYTES + each.header.length for each in to_send)
                    shared.metrics.catch_up_bytes += sent_bytes
                    await asyncio.sleep(shared.catch_ups.delay_s(sent_bytes))
        if self.failure is None and machine is self.machine:
            self._apply(machine.sent(effect.member, session, last))

    # New entries

    def _number(self, encoded: EncodedEntry) -> RecordHeader:
        writer = self.writer
        assert writer is not None
        return RecordHeader(
            RecordKind.ENTRY,
            self.container,
            self.epoch,
            self.epoch,
            writer.next_entry,
            writer.truncated_before,
            writer.acknowledged_entry + 1,
            encoded.length,
            encoded.checksum,
            encoded.codec,
        )

    def _send_new(self, sent: SentEntry) -> None:
        assert self.writer is not None
        _, effects = self.writer.append(sent.header.length)
        self._apply(effects)

    def _report_failure(self) -> None:
        assert self.failure is not None
        self._appended.fail(self.failure)

    def _release_all(self, _error: Exception | None) -> None:
        """The log has ended, and the own journal has written or discarded everything that it got."""
        self._appended.release_all()

    # The metadata store

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("event=log_failed container=%d error=%r", self.container, error, exc_info=error)
            self.end(
                error if isinstance(error, HeadraceError) else UnavailableError(f"the log has a defect: {error!r}")
            )

    async def _read_record(self) -> None:
        stored = await self._records.read()
        if self.failure is not None:
            return
        if stored is None:
            self._unknown()
        elif self.writer is None:
            self._apply(self._recovery.record_read(stored.log, stored.version, self._records.past_before))
        elif stored.log is None:
            raise CorruptError(f"the log record of container {self.container} has vanished")
        else:
            self._apply(self.writer.record_read(stored.log, stored.version))
            self._metrics.has_members(self.writer.log.members)

    async def _write_record(self, log: ContainerLog, version: int) -> None:
        machine = self.machine
        outcome = await self._records.write(log, version)
        if self.failure is not None:
            return
        assert machine is self.machine, "a machine has one request at a time"
        match outcome:
            case LogWriteOutcome.WRITTEN:
                self._apply(machine.record_written(version + 1))
                if machine is self.writer:
                    self._metrics.has_members(machine.log.members)
            case LogWriteOutcome.CONFLICT:
                self._apply(machine.record_conflict())
            case LogWriteOutcome.CLAIM_LOST:
                self._apply(machine.claim_lost())
            case LogWriteOutcome.UNKNOWN:
                self._unknown()

    def _unknown(self) -> None:
        if self.failure is None:
            unknown = self._recovery.request_unknown if self.writer is None else self.writer.record_unknown
            self._apply(unknown())

"""The owner of a log whose members, log record and journal do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from scripted_journal import ScriptedJournal

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.log_record_header import RecordHeader
from headrace.codec.replica_messages import HeldRun, Open, Opened
from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome, StoredLog
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.errors import HeadraceError
from headrace.model.replica_placement import Placement
from headrace.ports.replicas import OwnerMessage
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import MemberState
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.log.replicated.owned_log import OwnedLog
from headrace.segmentstore.log.replicated.shared_log_resources import CatchUps, LogPlan, SharedLogResources

if TYPE_CHECKING:
    from typing_extensions import Buffer

OWN, B, C, D = (ReplicaId(bytes([number]) * 16) for number in range(1, 5))
ZONES = {OWN: "zone-a", B: "zone-b", C: "zone-c", D: "zone-d"}
CONTAINER, FORMER, EPOCH = 3, 4, 6
LOG = ContainerLog(3, LogState.OPEN, (OWN, B, C), (LedgerStart(FORMER, 0),))
END = 10
"""The former ledger has the entries before this one."""


class ScriptedMembers:
    """`Members` that keeps what was sent. `unsent_bytes` wait in each link."""

    own = OWN

    def __init__(self) -> None:
        self.messages: list[tuple[ReplicaId, OwnerMessage]] = []
        self.entries: list[tuple[ReplicaId, RecordHeader, bytes]] = []
        self.unsent_bytes = 0
        self.detached = 0
        self._listeners: list[Callable[[ReplicaId], None]] = []

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        self.messages.append((replica, message))

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        self.entries.append((replica, header, b"".join(map(bytes, parts))))
        for listener in self._listeners:
            listener(replica)
        return self.unsent_bytes

    def detach(self) -> None:
        self.detached += 1

    def listen(self, listener: Callable[[ReplicaId], None]) -> None:
        """Call it with the member after each entry that is sent."""
        self._listeners.append(listener)

    def of(self, kind: type[OwnerMessage]) -> list[tuple[ReplicaId, OwnerMessage]]:
        """The messages of one kind; they are forgotten."""
        found = [message for message in self.messages if isinstance(message[1], kind)]
        self.messages = [message for message in self.messages if not isinstance(message[1], kind)]
        return found

    def numbers(self) -> list[tuple[ReplicaId, int]]:
        """The members and numbers of the entries that were sent; they are forgotten."""
        sent, self.entries = self.entries, []
        return [(member, header.entry) for member, header, _ in sent]


class ScriptedRecords:
    """The log record of the container. `outcomes` are those of the next writes, `refusals` those of the next reads."""

    def __init__(self, log: ContainerLog | None) -> None:
        self.stored = StoredLog(log, 1)
        self.outcomes: list[LogWriteOutcome] = []
        self.refusals: list[HeadraceError] = []
        self.written: list[tuple[ContainerLog, int, int]] = []
        self.snapshot = 0

    def read(self, _container: int) -> StoredLog:
        if self.refusals:
            raise self.refusals.pop(0)
        return self.stored

    def snapshot_epoch(self, _container: int) -> int:
        return self.snapshot

    def write(
        self, container: int, log: ContainerLog, version: int, epoch: int, _known: StoredLog | None
    ) -> LogWriteOutcome:
        assert container == CONTAINER
        self.written.append((log, version, epoch))
        outcome = self.outcomes.pop(0) if self.outcomes else LogWriteOutcome.WRITTEN
        if outcome is LogWriteOutcome.WRITTEN:
            self.stored = StoredLog(log, version + 1)
        return outcome


def plan(*members: ReplicaId, destroyed: Sequence[ReplicaId] = ()) -> LogPlan:
    members = members or (OWN, B, C)
    placement = Placement({ZONES[member]: member for member in members}, dict(ZONES), frozenset(destroyed))
    return LogPlan(members, 3, placement)


class ScriptedOwner:
    """An owner whose members do what the test says."""

    def __init__(
        self, log: ContainerLog | None = LOG, *, compresses: bool = False, bounds: WriterBounds | None = None
    ) -> None:
        self.members = ScriptedMembers()
        self.journal = ScriptedJournal()
        self.records = ScriptedRecords(log)
        self.clock = ManualClock()
        self.damages: list[tuple[int, Exception]] = []
        self.shared = SharedLogResources(
            cast("EntryJournal", self.journal),
            self.members,
            cast("ContainerLogRecords", self.records),
            self.clock,
            CatchUps(self.clock),
            bounds or WriterBounds(),
            RecoveryBounds(),
            compresses,
            lambda container, error: self.damages.append((container, error)),
        )
        self.owned = OwnedLog(self.shared, CONTAINER, EPOCH, plan())
        self.runs: dict[ReplicaId, tuple[HeldRun, ...]] = dict.fromkeys((OWN, B, C, D), (HeldRun(FORMER, 0, END, END),))
        self.outcomes: list[object] = []

    async def settled(self) -> None:
        """Requests and reads of this log have ended."""
        while self.owned._tasks:
            await asyncio.gather(*self.owned._tasks, return_exceptions=True)
            await asyncio.sleep(0)

    async def answer(self, *replicas: ReplicaId) -> None:
        """Replicas answer each OPEN: until all is quiet."""
        while opens := [sent for sent in self.members.of(Open) if sent[0] in (replicas or (OWN, B, C))]:
            for replica, message in opens:
                assert isinstance(message, Open)
                opened = Opened(CONTAINER, message.session, 0, EPOCH, 0, 0, self.runs[replica])
                self.owned.received(replica, opened)
            await self.settled()

    async def recovered(self) -> LedgerWriter:
        """All members have answered, and stream."""
        self.owned.start()
        await self.settled()
        await self.answer()
        writer = self.owned.writer
        assert writer is not None
        assert set(writer.member_states().values()) == {MemberState.STREAMING}
        self.members.messages.clear()
        return writer

    def append(self, *parts: bytes) -> int:
        """Append an entry; `outcomes` gets what its callbacks are told."""
        number = self.owned.next_entry
        return self.owned.append(
            parts,
            sum(map(len, parts)),
            lambda error: self.outcomes.append((number, error)),
            lambda: self.outcomes.append((number, "released")),
        )

    def ack(self, replica: ReplicaId, last: int) -> None:
        """A member holds its entries up to this one."""
        self.owned.acknowledged(replica, self.owned.machine.session_of(replica), EPOCH, last)

    def tick(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.owned.tick(self.owned.plan)

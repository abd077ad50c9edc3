"""The takeover of a log with three members, as a machine: its calls, in short."""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import Entries, Entry, HeldRun, Opened
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.replication.bounds import RecoveryBounds
from headrace.replication.effects import OpenMember, ReadEntries, ReadRecord, WriteClaim, WriterEffect
from headrace.replication.log_recovery import LogRecovery

OWN, B, C, D = (ReplicaId(bytes([number]) * 16) for number in range(4))
ZONES = {OWN: "a", B: "b", C: "c", D: "a"}
LOG = ContainerLog(3, LogState.OPEN, (OWN, B, C), (LedgerStart(5, 10),), 10)
EPOCH = 6
BOUNDS = RecoveryBounds()
GRACE = BOUNDS.fence_grace_ms


def recovery(log: ContainerLog | None = LOG, version: int = 3) -> LogRecovery:
    made = LogRecovery(0, OWN, (OWN, B, C), ZONES, 3, BOUNDS, 0)
    assert made.start(7) == [WriteClaim(7)]
    assert made.claimed(EPOCH) == [ReadRecord()]
    opens = made.record_read(log, version)
    assert sorted(effect.member for effect in opens if isinstance(effect, OpenMember)) == [OWN, B, C]
    return made


def answer(
    made: LogRecovery,
    replica: ReplicaId,
    end: int,
    *,
    had: int = 0,
    acknowledged_before: int = 0,
    truncated_before: int = 10,
) -> list[WriterEffect]:
    runs = (HeldRun(5, 10, end, max(end, had)),) if end > 10 else ()
    return made.opened(
        replica, Opened(0, made.session_of(replica), 0, EPOCH, truncated_before, acknowledged_before, runs)
    )


def of(kind: type, effects: list[WriterEffect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def no_entries(made: LogRecovery, effects: list[WriterEffect]) -> list[WriterEffect]:
    """Answer a read without an entry."""
    (read,) = of(ReadEntries, effects)
    return made.entries(read.message.request, Entries(read.message.request, 0, False, ()))


def entries(first: int, last: int) -> tuple[Entry, ...]:
    return tuple(
        Entry(RecordHeader(RecordKind.ENTRY, 0, 5, 5, number, 10, 0, 1, crc32c(b"x")), b"x")
        for number in range(first, last + 1)
    )

"""The owner of a log with three members, as a machine: its calls, in short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.codec.replica_messages import HeldRun, Opened
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import WriterBounds
from headrace.replication.effects import WriterEffect
from headrace.replication.ledger_writer import LedgerWriter

OWN, B, C, D = (ReplicaId(bytes([number]) * 16) for number in range(4))
ZONES = {OWN: "a", B: "b", C: "c", D: "c"}
LOG = ContainerLog(3, LogState.OPEN, (OWN, B, C), (LedgerStart(5, 10),), 10)
EPOCH, SIZE = 5, 100
BOUNDS = WriterBounds(size_mark_bytes=1)


def whole() -> Placement:
    return Placement({"a": OWN, "b": B, "c": C}, ZONES)


def writer(
    bounds: WriterBounds = BOUNDS, log: ContainerLog = LOG, streaming: Sequence[ReplicaId] = (OWN, B, C)
) -> LedgerWriter:
    made = LedgerWriter(0, OWN, log, 3, 10, 0, bounds, 0)
    made.place(whole())
    made.start()
    for replica in streaming:
        open_with(made, replica, 10)
    return made


def open_with(made: LedgerWriter, replica: ReplicaId, end: int) -> list[WriterEffect]:
    runs = (HeldRun(EPOCH, 10, end, end),) if end > 10 else ()
    return made.opened(replica, Opened(0, made.session_of(replica), 0, EPOCH, 10, 0, runs))


def ack(made: LedgerWriter, replica: ReplicaId, last: int) -> list[WriterEffect]:
    return made.acknowledged(replica, made.session_of(replica), EPOCH, last)


def append(made: LedgerWriter, entries: int = 1) -> None:
    for _ in range(entries):
        made.append(SIZE)


def of(kind: type, effects: list[WriterEffect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]

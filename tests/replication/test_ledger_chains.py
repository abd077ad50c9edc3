"""Takeovers of logs whose owners have changed often: ledgers without entries, and too many ledgers."""

from __future__ import annotations

from headrace.codec.replica_messages import HeldRun, Opened
from headrace.model.container_logs import LEDGERS_MAX, ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.replication.bounds import RecoveryBounds
from headrace.replication.effects import Blocked, WriteRecord, WriterEffect
from headrace.replication.log_recovery import LogRecovery

OWN, B, C = MEMBERS = tuple(ReplicaId(bytes([number]) * 16) for number in range(3))
ZONES = {OWN: "a", B: "b", C: "c"}


def taken_over(
    ledgers: tuple[LedgerStart, ...], runs: tuple[HeldRun, ...], epoch: int
) -> tuple[LogRecovery, list[WriterEffect]]:
    """A recovery of this log with the answers of all members, and the effects of these answers."""
    made = LogRecovery(0, OWN, MEMBERS, ZONES, 3, RecoveryBounds(), 0)
    made.start(7)
    made.claimed(epoch)
    made.record_read(ContainerLog(3, LogState.OPEN, MEMBERS, ledgers, 10), 3)
    effects: list[WriterEffect] = []
    for member in MEMBERS:
        effects += made.opened(member, Opened(0, made.session_of(member), 0, epoch, 10, 0, runs))
    return made, effects


def test_empty_ledger_of_the_former_owner_is_left_out() -> None:
    _, effects = taken_over((LedgerStart(4, 10), LedgerStart(5, 20)), (HeldRun(4, 10, 20, 20),), 6)
    (write,) = [effect for effect in effects if isinstance(effect, WriteRecord)]
    assert write.log.ledgers == (LedgerStart(4, 10), LedgerStart(6, 20))


def test_record_of_a_full_chain_is_not_written() -> None:
    ledgers = tuple(LedgerStart(number, 10 + number) for number in range(LEDGERS_MAX))
    runs = tuple(HeldRun(number, 10 + number, 11 + number, 11 + number) for number in range(LEDGERS_MAX))
    made, effects = taken_over(ledgers, runs, LEDGERS_MAX)
    assert made.last == 9 + LEDGERS_MAX
    assert not any(isinstance(effect, WriteRecord) for effect in effects)
    (blocked,) = [effect for effect in effects if isinstance(effect, Blocked)]
    assert "ledgers" in blocked.reason

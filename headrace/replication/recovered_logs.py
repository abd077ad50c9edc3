"""What a journal knows about each container after a start: the interface between the journal and ReplicaLog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.codec.replica_messages import HeldRun


class Witness(NamedTuple):
    """What the owner with this epoch knew as acknowledged: the entries before `acknowledged_before`."""

    epoch: int
    acknowledged_before: int


NO_WITNESS: Final = Witness(0, 0)


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The durable state of one container's log at a replica.

    A journal that has lost records which it cannot name does not give this state: its store makes a new journal, which
    is another replica.
    """

    promise: int = 0
    truncated_before: int = 0
    witness: Witness = NO_WITNESS
    runs: tuple[HeldRun, ...] = ()

"""What a journal knows about each container after a start: the interface between the journal and ReplicaLog."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.codec.replica_messages import HeldRun


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The durable state of one container's log at a replica.

    `acknowledged_before` is the entry behind the last one known to be acknowledged. A journal that has lost records
    which it cannot name does not give this state: its store makes a new journal, which is another replica.
    """

    promise: int = 0
    truncated_before: int = 0
    acknowledged_before: int = 0
    runs: tuple[HeldRun, ...] = ()

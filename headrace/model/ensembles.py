"""Ensembles: the replicas that must hold a container's log, and the quorums for appending to it and recovering it.

An entry is acknowledged when an ack quorum holds it. A recovery asks a read quorum. Any read quorum has a member in
common with any ack quorum, so that a recovery finds every acknowledged entry.

A position is the last entry that a replica holds durably, together with everything from the truncation point on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NewType

ReplicaId = NewType("ReplicaId", bytes)
"""16 random bytes, made with a journal. A store with a new volume is another replica."""

REPLICA_ID_BYTES: Final = 16

COPIES: Final = 3
"""Members of a complete ensemble in a replicated deployment."""

COPIES_MIN: Final = 2
"""Members below which an owner never reduces the ensemble of a replicated deployment."""

NO_POSITION: Final = -1
"""The position of a replica that holds no entry, in a log that begins with entry 0."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The members of a log. `copies` is 3 in a replicated deployment and 1 in a one-copy deployment."""

    members: tuple[ReplicaId, ...]
    copies: int = COPIES

    @property
    def ack_quorum(self) -> int:
        """The number of members that must hold an entry before it is acknowledged."""
        return min(self.copies, COPIES_MIN)

    @property
    def read_quorum(self) -> int:
        """The number of members that must answer a recovery: so many that no ack quorum remains without one."""
        return max(1, len(self.members) - self.ack_quorum + 1)

    def quorum_position(self, positions: Mapping[ReplicaId, int]) -> int:
        """The last entry that an ack quorum holds; NO_POSITION if the ensemble has fewer members than a quorum."""
        held = sorted((positions.get(member, NO_POSITION) for member in self.members), reverse=True)
        return held[self.ack_quorum - 1] if len(held) >= self.ack_quorum else NO_POSITION

    def is_read_quorum(self, answered: Collection[ReplicaId]) -> bool:
        """Whether so many members answered that every acknowledged entry is among what they hold."""
        return sum(member in answered for member in self.members) >= self.read_quorum


def joint_quorum_position(current: Ensemble, wanted: Ensemble | None, positions: Mapping[ReplicaId, int]) -> int:
    """The last entry that may be acknowledged.

    While the outcome of a change of the ensemble is not known, an entry needs the quorums of both ensembles: either of
    them may be the one that the next recovery reads.
    """
    position = current.quorum_position(positions)
    return position if wanted is None else min(position, wanted.quorum_position(positions))

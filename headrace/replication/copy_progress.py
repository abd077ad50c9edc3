"""What a takeover has copied to each replica, and since when it has got nowhere.

A recovery must not wait for ever for a replica that answered once. So it measures its progress: the positions of the
replicas that it asks. Without progress it begins again, with the answers that it gets then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.model.ensembles import NO_POSITION, ReplicaId
from headrace.replication.effects import Blocked, Send, Source, WriterEffect


class CopyProgress:
    """The copies of one takeover, in windows of `window_bytes`. Without progress for `stall_ms` it has stalled."""

    def __init__(self, window_bytes: int, stall_ms: int) -> None:
        self.blocked_by: str | None = None
        """Why the takeover waits; None again as soon as a replica has more than ever."""
        self._window_bytes = window_bytes
        self._stall_ms = stall_ms
        self._positions: dict[ReplicaId, int] = {}
        self._sent: dict[ReplicaId, int] = {}
        self._furthest: dict[ReplicaId, int] = {}  # over all attempts
        self._moved: set[ReplicaId] = set()  # since the last repetition
        self._moved_ms = 0

    @property
    def positions(self) -> Mapping[ReplicaId, int]:
        """Up to where each replica that answered holds everything."""
        return self._positions

    def begin(self) -> None:
        """Forget what replicas have reported: they are asked again."""
        self._positions.clear()
        self._sent.clear()

    def begin_copy(self, now_ms: int) -> None:
        """The end of the log and what each replica lacks are known."""
        self._moved.clear()
        self._moved_ms = now_ms

    def opened(self, replica: ReplicaId, position: int, now_ms: int) -> None:
        """A replica reported its position: nothing else is on its way to it."""
        self.holds(replica, position, now_ms)
        self._sent[replica] = self._positions[replica]

    def holds(self, replica: ReplicaId, position: int, now_ms: int) -> None:
        """A replica holds everything up to here."""
        known = self._furthest.get(replica)
        if known is None or position > known:
            self._furthest[replica] = position
            self._moved_ms = now_ms
            self.blocked_by = None
        if position > self._positions.setdefault(replica, NO_POSITION):
            self._positions[replica] = position
            self._moved.add(replica)

    def sent(self, replica: ReplicaId, last: int) -> None:
        """Entries up to here were sent to a replica."""
        self._sent[replica] = last

    def position(self, replica: ReplicaId) -> int:
        return self._positions.get(replica, NO_POSITION)

    def is_fed(self, replica: ReplicaId) -> bool:
        """Whether a replica was opened in this attempt, so that its acknowledgements count."""
        return replica in self._sent

    def awaits(self, replica: ReplicaId) -> bool:
        """Whether a replica has not acknowledged everything that was sent to it."""
        return self._sent.get(replica, NO_POSITION) > self.position(replica)

    def windows(self, replicas: Iterable[ReplicaId], last: int) -> list[WriterEffect]:
        """The next window for each of these replicas that has acknowledged everything that was sent to it."""
        effects: list[WriterEffect] = []
        for one in replicas:
            if not self.awaits(one):
                self._sent[one] = last
                effects.append(Send(one, self.position(one) + 1, last, Source.JOURNAL, self._window_bytes))
        return effects

    def take_moved(self) -> set[ReplicaId]:
        """The replicas that have got more since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    def has_stalled(self, now_ms: int) -> bool:
        return now_ms - self._moved_ms >= self._stall_ms

    def block(self, reason: str) -> list[WriterEffect]:
        """The takeover waits: tell it once."""
        if reason == self.blocked_by:
            return []
        self.blocked_by = reason
        return [Blocked(reason)]

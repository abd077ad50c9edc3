"""Which replica has an entry that a recovery lacks, also if its journal is damaged before that entry.

A replica tells the range that it holds, and up to where it once had entries. Between the two, entries are damaged or
are behind a damaged one. The latter are intact: the recovery asks for them before it gives an entry up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headrace.codec.replica_messages import Entries, Entry, Read
from headrace.model.container_logs import NO_POSITION, Ensemble, LedgerChain, ReplicaId
from headrace.replication.effects import Blocked, ReadEntries, Send, Source, WriterEffect

# What a takeover has copied to each replica, and since when it has got nowhere.
#
# A recovery must not wait for ever for a replica that answered once. So it measures its progress: the positions of the
# replicas that it asks. Without progress it begins again, with the answers that it gets then.


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
        for replica in replicas:
            if not self.awaits(replica):
                self._sent[replica] = last
                effects.append(Send(replica, self.position(replica) + 1, last, Source.JOURNAL, self._window_bytes))
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


class CopySources:
    """The replicas that answered a recovery, as sources of entries: one question at a time.

    A replica that has not answered a question for `patience_ms`, or whose link has ended, is not asked until it was
    opened again. It has denied nothing: the log does not end because of it.
    """

    def __init__(self, container: int, bytes_max: int, patience_ms: int) -> None:
        self._container = container
        self._bytes_max = bytes_max
        self._patience_ms = patience_ms
        self._chain = LedgerChain(())
        self._had: dict[ReplicaId, int] = {}
        self._denied: set[tuple[ReplicaId, int]] = set()
        self._lost: set[ReplicaId] = set()
        self._request = 0
        self._asked: tuple[ReplicaId, int] | None = None
        self._asked_ms = 0

    @property
    def is_reading(self) -> bool:
        return self._asked is not None

    def begin(self, chain: LedgerChain) -> None:
        """No replica has answered yet for this chain."""
        self._chain = chain
        self._had.clear()
        self._denied.clear()
        self._lost.clear()
        self._asked = None

    def answered(self, replica: ReplicaId) -> None:
        """A replica was opened over the link that there is now."""
        self._lost.discard(replica)

    def lost(self, replica: ReplicaId) -> bool:
        """The link to a replica has ended, and with it the question to it. Whether that is new."""
        if self._asked is not None and self._asked[0] == replica:
            self._asked = None
        is_new = replica not in self._lost
        self._lost.add(replica)
        return is_new

    def is_lost(self, replica: ReplicaId) -> bool:
        return replica in self._lost

    def awaits(self, replica: ReplicaId, request: int) -> bool:
        """Whether this question to this replica has no answer yet."""
        return self._asked is not None and self._asked[0] == replica and request == self._request

    def stop_waiting(self, now_ms: int) -> bool:
        """Do not wait for a source that has not answered in time. A later answer does not count."""
        if self._asked is None or now_ms - self._asked_ms < self._patience_ms:
            return False
        return self.lost(self._asked[0])

    def silent_with(self, entry: int, replicas: Collection[ReplicaId]) -> list[ReplicaId]:
        """Which of the replicas had an entry, have not denied it, and do not answer."""
        return sorted(
            each
            for each in self._lost
            if each in replicas and self._had.get(each, NO_POSITION) >= entry and (each, entry) not in self._denied
        )

    def note(self, replica: ReplicaId, had: int) -> None:
        """A replica once had everything up to this entry. It is asked again for what it did not have intact."""
        self._had[replica] = had
        self._denied = {denied for denied in self._denied if denied[0] != replica}

    def ask(self, first: int, last: int, positions: Mapping[ReplicaId, int], now_ms: int) -> ReadEntries | None:
        """Ask for entries of one ledger, from `first` on; None if each that had this entry denied it or is silent."""
        source = self._best(first, positions)
        epoch = self._chain.epoch_of(first)
        if source is None or epoch is None:
            return None
        position = positions.get(source, NO_POSITION)
        if position >= first:
            last = min(last, position)
        self._request += 1
        self._asked, self._asked_ms = (source, first), now_ms
        last = self._chain.clip(epoch, last)
        return ReadEntries(source, Read(self._request, self._container, epoch, first, last, self._bytes_max))

    def answer(self, request: int, message: Entries, last: int) -> tuple[Entry, ...] | None:
        """The entries that were asked for; None if this is not the answer to the current question."""
        if self._asked is None or request != self._request or message.container != self._container:
            return None
        source, first = self._asked
        self._asked = None
        entries = tuple(entry for entry in message.entries if self._is_wanted(entry, first, last))
        if not entries:
            self._denied.add((source, first))
        return entries

    def may_be_acknowledged(self, entry: int, ensemble: Ensemble) -> bool:
        """Whether an ack quorum may have had the entry: members that did not answer may have had everything."""
        count = sum(self._had.get(member, entry) >= entry for member in ensemble.members)
        return count >= ensemble.ack_quorum

    def _best(self, entry: int, positions: Mapping[ReplicaId, int]) -> ReplicaId | None:
        """The replica that holds the most, if it holds the entry; else one that had it; None if each denied it."""
        sources = [each for each in self._had if max(positions.get(each, NO_POSITION), self._had[each]) >= entry]
        sources = [source for source in sources if (source, entry) not in self._denied and source not in self._lost]
        return max(
            sources, key=lambda source: (positions.get(source, NO_POSITION), self._had[source], source), default=None
        )

    def _is_wanted(self, entry: Entry, first: int, last: int) -> bool:
        """Whether the entry is one of this log that was asked for: the number alone does not say so."""
        header = entry.header
        is_of_log = header.container == self._container and self._chain.has(header.epoch, header.entry)
        return is_of_log and first <= header.entry <= last

"""Watches everything that the simulated stores do, knows which copies truly exist, and names violated invariants.

The checkers take nothing from the state machines' own account of what is durable: the oracle records what the disks
synced. A checker is named as in the list of invariants (I1 to I12), or `durability`, `progress`, `machine`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from headrace.codec.log_record_header import RecordKind
from headrace.codec.replica_messages import Entry, Nack, Opened
from headrace.model.container_logs import COPIES_MIN, ContainerLog, LedgerChain, LogState, ReplicaId
from headrace.replication.effects import Held, QueueRecord, Serve, WriterEffect
from headrace.replication.log_ends import had_position, reported_position
from headrace.replication.replica_log import RecoveredLog, ReplicaLog
from simulation.disk import DiskError
from simulation.journal import SyncedRecord
from simulation.network import Address
from simulation.owner import Owner

_READ_BYTES: Final = 4_000


class Violation(NamedTuple):
    """A checker that fired, when, and what it saw."""

    checker: str
    time: int
    what: str


class Checkers:
    """The oracle of one run. `violations` is empty at the end of a run without a defect."""

    def __init__(self, containers: int, now: Callable[[], int], note: Callable[[str], None]) -> None:
        self.violations: list[Violation] = []
        self.states: Counter[str] = Counter()
        self.zones: dict[ReplicaId, int] = {}
        self.acknowledged_end = [0] * containers
        self.checkpoint_end = [0] * containers
        self.acknowledged_count = 0
        self._now = now
        self._note = note
        self._records: list[ContainerLog | None] = [None] * containers
        self._content: dict[tuple[int, int, int], bytes] = {}
        self._acknowledged: list[dict[int, int]] = [{} for _ in range(containers)]
        self._durable: dict[ReplicaId, set[tuple[int, int, int]]] = {}
        self._damaged: set[tuple[ReplicaId, int, int, int]] = set()
        self._survivor: list[ReplicaId | None] = [None] * containers
        self._witness_end = [0] * containers
        self._promises: dict[tuple[ReplicaId, int], int] = {}
        self._reported_truncated: dict[tuple[ReplicaId, int], int] = {}
        self._held: dict[tuple[ReplicaId, int], tuple[int, int]] = {}
        self._owners: dict[tuple[int, int], Address] = {}
        self._checked: dict[tuple[ReplicaId, int, int, int], int] = {}

    def violated(self, checker: str, what: str) -> None:
        self.violations.append(Violation(checker, self._now(), what))

    # What disks hold.

    def new_replica(self, replica: ReplicaId, zone: int) -> None:
        """A volume was made. It is empty, also if it has a name that was used before."""
        self.zones[replica] = zone
        self._durable[replica] = set()

    def synced(self, replica: ReplicaId, records: list[SyncedRecord]) -> None:
        """The disk, not the journal, says that these records are durable. I1: they have what their writer appended."""
        for header, payload in records:
            if header.kind is RecordKind.DROP:
                self._durable[replica] = {key for key in self._durable[replica] if key[0] != header.container}
            if header.kind is not RecordKind.ENTRY:
                continue
            key = (header.container, header.epoch, header.entry)
            self._durable[replica].add(key)
            self._damaged.discard((replica, *key))
            if payload != self._content.get(key):
                self.violated("I1", f"{key} has a content that its writer never gave it")

    def scanned(
        self,
        replica: ReplicaId,
        entries: Iterable[tuple[int, int, int]],
        recovered: Mapping[int, RecoveredLog],
        *,
        is_damaged: bool = False,
    ) -> None:
        """A start found these entries intact and synced them, also those of a commit that had not ended.

        I2: a replica that said to hold an entry of the log still does, or says that it is damaged. I3: it knows what it
        promised. I10: its truncation point is that of a checkpoint.
        """
        self._durable[replica].update(entries)
        for (holder, container), promise in self._promises.items():
            if holder == replica and recovered.get(container, RecoveredLog()).promise < promise:
                self.violated("I3", f"a start does not find the promise {promise} of container {container}")
        for container, log in recovered.items():
            if log.truncated_before > self.checkpoint_end[container]:
                self.violated(
                    "I10", f"a replica truncated entries before {log.truncated_before}, tier 2 has not got them"
                )
        for (holder, container), (epoch, last) in self._held.items():
            record = self._records[container]
            if holder != replica or record is None or not record.chain.has(epoch, last):
                continue
            log = recovered.get(container, RecoveredLog())
            truncated_before = max(log.truncated_before, record.truncated_before)
            reported = reported_position(record.chain, truncated_before, log.runs)
            if is_damaged:
                reported = max(reported, had_position(record.chain, truncated_before, log.runs))
            if reported < last:
                self.violated("I2", f"a replica held everything up to {last}, and holds up to {reported} after a start")

    def damaged(self, replica: ReplicaId, key: tuple[int, int, int]) -> None:
        """A durable copy of an entry has rotted."""
        self._damaged.add((replica, *key))

    def _holds(self, replica: ReplicaId, container: int, chain: LedgerChain, entry: int) -> bool:
        return (container, chain.epoch_of(entry) or 0, entry) in self._durable[replica]

    def _lacks(self, replica: ReplicaId, container: int, chain: LedgerChain, first: int, last: int) -> int | None:
        """The first entry of a range that a replica does not hold durably."""
        for entry in range(first, last + 1):
            if not self._holds(replica, container, chain, entry):
                return entry
        return None

    def had(self, container: int, chain: LedgerChain, replicas: Iterable[ReplicaId]) -> set[tuple[int, int]]:
        """The entries of a log (epoch, entry) that some of the replicas once had durable."""
        keys = (key for replica in replicas for key in self._durable[replica])
        return {(epoch, entry) for holder, epoch, entry in keys if holder == container and chain.has(epoch, entry)}

    # What replicas do.

    def taken(self, replica: ReplicaId, log: ReplicaLog, effect: QueueRecord) -> None:
        if effect.header.kind is RecordKind.DROP:
            self._held.pop((replica, log.container), None)
            record = self._records[log.container]
            if record is not None and record.state is LogState.OPEN and replica in record.members:
                self.violated("I8", f"a member of container {log.container} drops its copy")
        if effect.header.kind is not RecordKind.ENTRY:
            return
        promised = self._promises.get((replica, log.container), 0)
        if effect.header.writer_epoch < promised:
            self.violated("I3", f"an entry of writer {effect.header.writer_epoch} was taken after promising {promised}")

    def reported(self, replica: ReplicaId, log: ReplicaLog, message: Opened | Nack) -> None:
        if isinstance(message, Nack):
            self.states[f"nack {message.code}"] += 1
            return
        key = (replica, log.container)
        if message.promise < self._promises.get(key, 0):
            self.violated("I3", f"promise {message.promise} after {self._promises[key]}")
        self._promises[key] = max(message.promise, self._promises.get(key, 0))
        self._reported_truncated[key] = message.truncated_before
        if message.acknowledged_before > self._witness_end[log.container]:
            self.violated("I5", f"a replica knows {message.acknowledged_before - 1} as acknowledged, which is not")
        for run in message.runs:
            for entry in range(max(run.start, message.truncated_before), run.end):
                if (log.container, run.epoch, entry) not in self._durable[replica]:
                    self.violated("I2", f"OPENED reports {entry} of epoch {run.epoch}, which is not durable")
        self._check_gapless(replica, log, log.durable_end - 1)

    def held(self, replica: ReplicaId, log: ReplicaLog, effect: Held) -> None:
        self._held[replica, log.container] = (log.chain.epoch_of(effect.last) or 0, effect.last)
        self._check_gapless(replica, log, effect.last)

    def discarded(self) -> None:
        """A replica has dropped a copy that it found to be unneeded."""
        self.states["copy discarded"] += 1

    def _check_gapless(self, replica: ReplicaId, log: ReplicaLog, last: int) -> None:
        """I2: what a replica says to hold, it holds without gaps from the truncation point on."""
        session = log.session
        if session is None:
            return
        key = (replica, log.container, session.writer_epoch, session.number)
        first = max(log.truncated_before, self._checked.get(key, 0))
        lacks = self._lacks(replica, log.container, log.chain, first, last)
        if lacks is not None:
            self.violated("I2", f"a replica says to hold everything up to {last}, and does not hold {lacks}")
        self._checked[key] = last + 1

    # What owners do.

    def claimed(self, container: int, epoch: int, owner: Address) -> None:
        if self._owners.setdefault((container, epoch), owner) != owner:
            self.violated("I9", f"two owners have epoch {epoch} of container {container}")

    def appended(self, owner: Owner, entry: int, payload: bytes) -> None:
        key = (owner.container, owner.epoch, entry)
        if self._content.setdefault(key, payload) != payload:
            self.violated("I1", f"{key} was written twice with different contents")

    def acknowledged(self, owner: Owner, up_to: int) -> None:
        container = owner.container
        record = self._records[container]
        assert record is not None
        self._note(f"ack {container} {owner.epoch} {up_to}")
        known = self._acknowledged[container]
        first = self.acknowledged_end[container]
        # A late acknowledgement of what the next owner has recovered and moved to tier 2 is true.
        is_in_tier_two = record.state is LogState.EMPTY and up_to < (record.next_entry or 0)
        if record.state is not LogState.OPEN and not is_in_tier_two:
            self.violated("I7", f"epoch {owner.epoch} acknowledges {up_to}, the log has ended")
        for start in record.ledgers:
            if start.epoch > owner.epoch and up_to >= start.first:
                self.violated("I7", f"epoch {owner.epoch} acknowledges {up_to}, ledger {start} has begun")
        for entry in range(max(first, owner.machine.chain.ledgers[0].first), up_to + 1):
            known[entry] = owner.machine.chain.epoch_of(entry) or 0
        for entry in range(owner.machine.chain.ledgers[-1].first, min(first, up_to + 1)):
            if known.get(entry) not in (owner.epoch, None):
                self.violated("I7", f"entry {entry} is acknowledged by epochs {known[entry]} and {owner.epoch}")
        self.acknowledged_count += max(0, up_to + 1 - first)
        self._extend(container, up_to)
        self._check_acknowledged(container, record, up_to, owner.machine.chain)

    def _check_acknowledged(self, container: int, record: ContainerLog, up_to: int, chain: LedgerChain) -> None:
        """I4: the members of the record that is in force have what is acknowledged, so many that recoveries find it."""
        if record.state is not LogState.OPEN or up_to < self.checkpoint_end[container]:
            return
        copies = sum(self._holds(member, container, chain, up_to) for member in record.members)
        if copies < COPIES_MIN:
            self.violated("I4", f"entry {up_to} of container {container} is acknowledged, {copies} members have it")

    def recorded(self, container: int, before: ContainerLog | None, after: ContainerLog, epoch: int) -> None:
        """A log record took effect."""
        self._records[container] = after
        self._note(f"record {container} {after.ledgers} {len(after.members)}")
        if after.state is LogState.EMPTY:
            self._check_ended(container, before, after, epoch)
            return
        self._check_loss(container, before, after)
        self._count_record(before, after)
        self._check_prefix(before, after, epoch)
        if len({self.zones[member] for member in after.members}) < len(after.members):
            self.violated("I11", f"two members of container {container} are in one zone")
        if len(after.members) < COPIES_MIN:
            self.violated("I8", f"container {container} has {len(after.members)} members")
        last_closed = after.ledgers[-1].first - 1
        first = max(self.checkpoint_end[container], after.ledgers[0].first)
        for member in after.members:
            lacks = self._lacks(member, container, after.chain, first, last_closed)
            if lacks is not None:
                self.violated("I8", f"a member does not hold {lacks} of a log that was closed at {last_closed}")
        if self.acknowledged_end[container]:
            last = self.acknowledged_end[container] - 1
            if after.ledgers[-1].epoch == self._acknowledged[container].get(last):
                self._check_acknowledged(container, after, last, after.chain)
            elif after.ledgers[-1].first <= last:
                self.violated(
                    "durability", f"entry {last} was acknowledged, the next ledger begins with {last_closed + 1}"
                )

    def flushed(self, owner: Owner, end: int) -> None:
        """Tier 2 has everything before `end`."""
        self.checkpoint_end[owner.container] = max(self.checkpoint_end[owner.container], end)

    def _check_ended(self, container: int, before: ContainerLog | None, after: ContainerLog, epoch: int) -> None:
        """A clean end: tier 2 has everything that was acknowledged."""
        self.states["log ended"] += 1
        self._survivor[container] = None
        assert after.next_entry is not None
        if max(self.acknowledged_end[container], after.next_entry) > self.checkpoint_end[container]:
            self.violated("I10", f"the log ended at {after.next_entry}, tier 2 has less")
        if before is None or not before.ledgers or before.ledgers[-1].epoch != epoch:
            self.violated("I6", f"epoch {epoch} ended a log that is not its own")

    def loss_accepted(self, container: int, before: ContainerLog, after: ContainerLog) -> None:
        """An operator removed destroyed members. What is lost is known when the next ledger begins."""
        self.states[f"loss accepted, {len(after.members)} left"] += 1
        self._note(f"loss {container} {len(after.members)}")
        self._records[container] = after
        self._survivor[container] = after.members[0] if after.members else None
        if after.next_entry is not None:
            self._forget_lost(container, self.checkpoint_end[container])
            self.acknowledged_end[container] = self.checkpoint_end[container] = after.next_entry

    def _check_loss(self, container: int, before: ContainerLog | None, after: ContainerLog) -> None:
        """An accepted loss: the next ledger begins behind all that the member that was left has intact.

        Its log begins at the truncation point that it knew. Behind a damaged entry from there on nothing can be
        replayed, even if only the lost members knew that tier 2 has this entry.
        """
        survivor, self._survivor[container] = self._survivor[container], None
        first, end = after.ledgers[-1].first, self.acknowledged_end[container]
        if survivor is None or before is None or before.ledgers[-1] == after.ledgers[-1] or first >= end:
            return
        self.states["accepted loss lost entries"] += 1
        begin = max(
            before.truncated_before, self._reported_truncated.get((survivor, container), 0), before.ledgers[0].first
        )
        for entry in range(begin, end):
            key = (container, before.chain.epoch_of(entry) or 0, entry)
            if key not in self._durable[survivor] or (survivor, *key) in self._damaged:
                break
            if entry >= max(first, self.checkpoint_end[container]):
                self.violated("durability", f"entry {entry} is lost, the member that was left had it")
        self._forget_lost(container, first)
        self.acknowledged_end[container] = first

    def _forget_lost(self, container: int, first: int) -> None:
        known = self._acknowledged[container]
        self._acknowledged[container] = {entry: epoch for entry, epoch in known.items() if entry < first}

    def _extend(self, container: int, last: int) -> None:
        self.acknowledged_end[container] = max(self.acknowledged_end[container], last + 1)
        self._witness_end[container] = max(self._witness_end[container], last + 1)

    def _count_record(self, before: ContainerLog | None, after: ContainerLog) -> None:
        if before is None or before.ledgers[-1:] != after.ledgers[-1:]:
            if before is not None and before.next_entry is not None:
                self.states[f"ledger opened from {before.state}"] += 1
            self.states[f"ledger opened with {len(after.members)} members"] += 1
            return
        gained = len(set(after.members) - set(before.members))
        gone = len(set(before.members) - set(after.members))
        names = {(0, 0): "kept", (1, 0): "added", (0, 1): "removed", (1, 1): "replaced"}
        self.states[f"member {names.get((gained, gone), 'changed')}"] += 1

    def _check_prefix(self, before: ContainerLog | None, after: ContainerLog, epoch: int) -> None:
        """I6: ledgers are appended, and removed from the front, or if the next one begins where they begin."""
        if before is None:
            return
        if before.next_entry is not None:
            if after.ledgers[0].first != before.next_entry:
                self.violated("I6", f"a log that ended before {before.next_entry} continues with {after.ledgers}")
            return
        common = [start for start in after.ledgers if start.epoch <= before.ledgers[-1].epoch]
        chain = (*before.ledgers, *(start for start in after.ledgers if start not in common))
        empty = {start for start, following in pairwise(chain) if start.first == following.first}
        kept = [start for start in before.ledgers if start in common or start not in empty]
        if common != kept[len(kept) - len(common) :]:
            self.violated("I6", f"ledgers {before.ledgers} became {after.ledgers}, written by epoch {epoch}")
        if before.ledgers[-1].epoch > epoch:
            self.violated("I6", f"epoch {epoch} wrote over a record of epoch {before.ledgers[-1].epoch}")

    def serves(self, owner: Owner, effect: Serve) -> None:
        """A recovery has ended: everything that was acknowledged is there, byte for byte."""
        container, chain = owner.container, effect.log.chain
        self.states["recovery served"] += 1
        if effect.truncated_before > self.checkpoint_end[container]:
            self.violated("I10", f"entries before {effect.truncated_before} are given away, tier 2 has not got them")
        record = self._records[container]
        if record is not None and (not record.ledgers or record.ledgers[-1].epoch > owner.epoch):
            self.states["outdated owner served"] += 1
            return  # it was paused, and gets no acknowledgement: I4 and I7 watch that
        last = self.acknowledged_end[container] - 1
        if effect.last < last:
            self.violated("durability", f"entry {last} was acknowledged, the recovered log ends at {effect.last}")
        for entry in range(max(last + 1, effect.log.ledgers[0].first), effect.last + 1):
            self._acknowledged[container][entry] = chain.epoch_of(entry) or 0
        self._extend(container, effect.last)
        found: dict[int, Entry] = {}
        for entry in range(effect.truncated_before, effect.last + 1):
            epoch = chain.epoch_of(entry) or 0
            if entry not in found:
                bounds = chain.bounds(epoch)
                end = effect.last if bounds is None or bounds[1] is None else min(effect.last, bounds[1] - 1)
                try:
                    read = owner.journal.read(container, epoch, entry, end, _READ_BYTES)
                except DiskError:
                    owner.has_failed = True
                    return
                found = {each.header.entry: each for each in read}
            expected = self._acknowledged[container].get(entry)
            if entry not in found or bytes(found[entry].payload) != self._content.get((container, epoch, entry)):
                self.violated("durability", f"entry {entry} of a recovered log is not what was appended")
            elif expected is not None and expected != epoch:
                self.violated("durability", f"entry {entry} was acknowledged by epoch {expected}, found is {epoch}")

    def state(self, name: str) -> None:
        self.states[name] += 1

    def effect_after_failure(self, owner: Owner, effect: WriterEffect) -> None:
        """Effects behind a failure in one list are not carried out; machines do not make them."""
        if owner.machine.has_failed:
            self.violated("machine", f"{type(effect).__name__} after the machine has failed")

"""The simulated cluster: stores in three zones, the map of containers, the workload, and the faults of a tape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from headrace.codec.log_record_header import RECORD_HEADER_BYTES
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import REOPEN_FIRST_MS
from headrace.replication.ledger_writer import LedgerWriter
from simulation.assignments import Assignments
from simulation.checkers import Checkers
from simulation.disk import READ_BLOCK_BYTES
from simulation.draws import Draws
from simulation.metadata import Metadata
from simulation.network import LINK_SILENCE, Address, Network
from simulation.owner import Owner
from simulation.scheduler import MS, Scheduler
from simulation.store import Store
from simulation.swarm import Swarm
from simulation.tape import APPEND, CHECKPOINT, Step

ZONES: Final = 3
_ENTRIES_ON_A_LINK: Final = 10


_UNREADABLE_RATE: Final = 0.4
"""Of the damage: the disk reports it. Otherwise it returns wrong bytes."""


def _block_end(position: int) -> int:
    return (position // READ_BLOCK_BYTES + 1) * READ_BLOCK_BYTES


class Cluster:
    """Everything of one run."""

    def __init__(self, draws: Draws, swarm: Swarm) -> None:
        self.draws = draws
        self.swarm = swarm
        self.faults: Counter[str] = Counter()
        self.scheduler = Scheduler(draws)
        self.network = Network(self.scheduler, draws, swarm, self.faults)
        self.checkers = Checkers(swarm.containers, lambda: self.scheduler.now, self.scheduler.note)
        recorded, claimed, lost = self.checkers.recorded, self.checkers.claimed, self.checkers.loss_accepted
        self.metadata = Metadata(self.scheduler, draws, swarm, self.faults, recorded, claimed, lost)
        self.destroyed: set[ReplicaId] = set()
        self.known_destroyed: frozenset[ReplicaId] = frozenset()
        self.stores = [Store(self, number, number % ZONES) for number in range(swarm.stores)]
        self._placements: dict[int, Placement] = {}  # until a process starts or ends, or others are wanted
        self._shift = 0
        """Another one makes other stores of a zone the wanted ones."""
        for store in self.stores:
            store.start()
        self.assignments = Assignments(self)
        self.assignments.look()

    # What stores ask.

    def registered(self, store: Store) -> None:
        """A process started. Replicas of its store's earlier volumes are known to be destroyed."""
        gone = {replica for replica in self.destroyed if replica[0] == store.number}
        self.known_destroyed |= gone
        self._placements.clear()

    def address_of(self, replica: ReplicaId) -> Address | None:
        for store in self.stores:
            if store.is_running and store.replica == replica:
                return store.address
        return None

    def replica_at(self, address: Address) -> ReplicaId | None:
        store = self.stores[address.store]
        return store.replica if store.address == address else None

    def placement(self, container: int) -> Placement:
        found = self._placements.get(container)
        if found is None:
            wanted = {str(zone): self._preferred(zone, container).replica for zone in range(ZONES)}
            found = self._placements[container] = Placement(wanted, self.zones(), self.known_destroyed)
        return found

    def zones(self) -> Mapping[ReplicaId, str]:
        return {replica: str(zone) for replica, zone in self.checkers.zones.items()}

    def wanted(self, own: Store, container: int) -> tuple[ReplicaId, ...]:
        """The replicas of a new log: the owner's, and one in each other zone."""
        others = [self._preferred(zone, container) for zone in range(ZONES) if zone != own.zone]
        return (own.replica, *(store.replica for store in others))

    def _preferred(self, zone: int, container: int) -> Store:
        stores = [store for store in self.stores if store.zone == zone]
        running = [store for store in stores if store.is_running]
        return min(running or stores, key=lambda store: (store.number * 7 + container * 5 + self._shift) % 11)

    def connections_lost(self, store: Store) -> None:
        """The processes that are connected to a store notice its end, soon or only by its silence."""
        self._placements.clear()
        for other in self.stores:
            if other is store or not other.is_running:
                continue
            is_half_open = self.network.has_faults and self.draws.happens(
                self.swarm.message.get("half open", 0) * 5, "half open", store.number
            )
            if is_half_open:
                self.faults["half open"] += 1
            low, high = (1500 * MS, 2500 * MS) if is_half_open else (MS, 50 * MS)
            delay = self.draws.between(low, high, "notice", store.number)
            self._tell_lost(other, store, delay)

    def _tell_lost(self, store: Store, other: Store, delay: int) -> None:
        """Tell a store after a while that its link to the process that another one has now has ended."""
        lost = partial(store.link_lost, other.replica, self.network.link_from(other.address, store.number))
        self.scheduler.after(delay, "link lost", lost, store.number)

    def _reset(self, first: Store, second: Store) -> None:
        """End the links between two stores, as if one of them had sent a reset."""
        if first is not second:
            for store, peer in ((first, second), (second, first)):
                self._tell_lost(store, peer, self.draws.between(MS, 50 * MS, "notice", store.number))
            self.network.reset(first.number, second.number)

    # Who owns what.

    def serving(self, container: int) -> Owner | None:
        """The owner whose epoch is the claim's, if it serves."""
        claim = self.metadata.claims[container]
        if claim.owner is None:
            return None
        owner = self.stores[claim.owner.store].owners.get(container)
        if owner is None or owner.epoch != claim.version or owner.writer is None or owner.has_failed:
            return None
        return owner

    def take_over(self, container: int, store: Store) -> None:
        """The map gives a container to a store, and that one claims it now."""
        self.assignments.assign(container, store)
        store.owners.pop(container, None)
        store.take_over(container)

    # The tape.

    def play(self, tape: list[Step]) -> None:
        for step in tape:
            self.scheduler.after(step.time - self.scheduler.now, step.kind, self._action(step))

    def _action(self, step: Step) -> Callable[[], None]:
        return lambda: self.carry_out(step)

    def carry_out(self, step: Step) -> None:
        if step.kind == APPEND:
            self.append(step.target, step.amount)
        elif step.kind == CHECKPOINT:
            self.checkpoint(step.target, step.amount)
        else:
            self.faults[step.kind] += 1
            self._inject(step)

    def append(self, container: int, size: int) -> None:
        """Append at every store that believes to be the owner: one that was fenced may not know it."""
        for store in self.stores:
            owner = store.owners.get(container)
            if owner is None or not store.is_running or self.scheduler.is_paused(store.number):
                continue
            if owner.has_failed or owner.writer is None or store.disk.is_full or not owner.takes_entries:
                continue
            name = b"%d %d %d " % (container, owner.epoch, owner.writer.next_entry)
            owner.append(name.ljust(len(name) + size, b"."))

    def checkpoint(self, container: int, percent: int) -> None:
        """Tier 2 takes a part of what is acknowledged; the owner truncates its log behind that."""
        owner = self.serving(container)
        if owner is None or self.scheduler.is_paused(owner.address.store):
            return
        assert isinstance(owner.writer, LedgerWriter)
        oldest = owner.writer.truncated_before
        end = oldest + (owner.writer.acknowledged_entry + 1 - oldest) * percent // 100
        self.checkers.checkpoint_end[container] = max(self.checkers.checkpoint_end[container], end)
        owner.writer.truncate(end)
        self.checkers.state("truncated")

    def _inject(self, step: Step) -> None:
        store, other, until = self.stores[step.target], self.stores[step.other], self.scheduler.now + step.amount
        match step.kind:
            case "kill":
                if store.is_running:
                    store.crash()
            case "kill in a commit":
                store.dies_in_commit = True
            case "power cut":
                if store.is_running:
                    store.crash(cuts_power=True)
            case "pause":
                self.scheduler.pause(store.number, step.amount)
                self.scheduler.after(LINK_SILENCE, "silence", partial(self._reset_if_paused, store))
            case "replace":
                if store.is_running:
                    store.stop()
                    store.replace_volume()
                    store.crash()
            case "clock jump":
                store.clock_offset_ms += step.amount % 2000
            case "write error":
                store.disk.fail_next_write = True
            case "sync error":
                store.disk.fail_next_sync = True
            case "create error":
                store.disk.fail_next_create = True
            case "disk full":
                disk = store.disk
                disk.is_full = True
                self.scheduler.after(step.amount, "disk freed", lambda: setattr(disk, "is_full", False))
            case "slow disk":
                store.slow_until = until
            case "rot":
                self._rot(store, step.amount)
            case "metadata outage":
                self.metadata.outage_until = until
            case "congestion":
                for owner in store.owners.values():
                    owner.congested(other.replica)
            case "clean end":
                serving = self.serving(step.amount % self.swarm.containers)
                if serving is not None:
                    serving.end()
            case "accept loss":
                self.metadata.accept_loss(step.amount % self.swarm.containers, self.destroyed)
            case "reset":
                self._reset(store, other)
            case "new link":
                self._replace_link(step.target % self.swarm.containers, other, step.amount)
            case "placement":
                self._shift = step.amount
                self._placements.clear()
            case "takeover":
                self._try_takeover(store, step.amount)
            case "duel":
                self._try_takeover(store, step.amount)
                self._try_takeover(other, step.amount)
            case _:
                self._cut(step)

    def _replace_link(self, container: int, other: Store, amount: int) -> None:
        """Slow the link of an owner down, then let it connect again. The new link overtakes what is on the earlier one.

        The disk behind it is slow then, too: entries that arrive late are queued behind the new OPEN.
        """
        owner = self.serving(container)
        if owner is None or not other.is_running or owner.address == other.address:
            return
        store = self.stores[owner.address.store]
        source, target = store.address, other.address
        self.network.slow_down(source, target, amount // 4)

        def connect_again() -> None:
            self.network.new_link(source, target)
            self._tell_lost(store, other, MS)

        def slow_down() -> None:
            other.slow_until = max(other.slow_until, self.scheduler.now + amount // 2)

        for number in range(_ENTRIES_ON_A_LINK):
            delay = number * amount // 2 // _ENTRIES_ON_A_LINK
            self.scheduler.after(delay, "append", partial(self.append, container, 1))
        self.scheduler.after(amount // 2, "new link", connect_again)
        self.scheduler.after(amount // 2 + REOPEN_FIRST_MS * MS, "slow disk", slow_down)

    def _try_takeover(self, store: Store, amount: int) -> None:
        container = amount % self.swarm.containers
        owner = store.owners.get(container)
        if owner is None or owner.writer is None:
            self.take_over(container, store)

    def _cut(self, step: Step) -> None:
        def cut(first: int, second: int) -> None:
            if first != second:
                self.network.cut(first, second, step.amount)
                silent = partial(self._reset, self.stores[first], self.stores[second])
                self.scheduler.after(LINK_SILENCE, "silence", silent)

        match step.kind:
            case "cut direction":
                cut(step.target, step.other)
            case "cut pair":
                cut(step.target, step.other)
                cut(step.other, step.target)
            case "cut store":
                for number in range(len(self.stores)):
                    cut(step.target, number)
                    cut(number, step.target)
            case "swizzle":
                for number in range(len(self.stores)):
                    delay = (number * 7 + step.other) % 5 * 100 * MS
                    self.scheduler.after(delay, "swizzle", partial(cut, step.target, number))
            case _:
                raise AssertionError(f"unknown step {step}")

    def _reset_if_paused(self, store: Store) -> None:
        """The other stores end their links to one that is silent."""
        if self.scheduler.is_paused(store.number):
            for other in self.stores:
                self._reset(store, other)

    def _rot(self, store: Store, amount: int) -> None:
        """Damage what something later proves to have been durable: a new entry, or any byte of any file."""
        if store.process is None:
            return
        journal = store.journal()
        ends = journal.durable_ends()
        places = sorted(
            place
            for place in journal.entries().values()
            if place.position + RECORD_HEADER_BYTES + place.length <= ends[place.file]
        )
        if amount // 13 % 8 == 0:
            file = sorted(ends)[amount // 5 % len(ends)]
            self._damage(store, file, amount // 3 % ends[file], ends[file])
        elif places:
            place = places[-1 - amount % min(len(places), 3)]
            is_header = amount // 7 % 4 == 0
            offset = 20 if is_header else RECORD_HEADER_BYTES + amount % max(place.length, 1)
            self._damage(store, place.file, place.position + offset, ends[place.file])
        if amount // 31 % 2 == 0:
            store.crash()

    def _damage(self, store: Store, file: str, position: int, durable_end: int) -> None:
        """Change a byte, or make its block unreadable, and tell the oracle which entries it belongs to."""
        damaged = range(position, position + 1)
        if self.draws.happens(_UNREADABLE_RATE, "unreadable", store.number) and _block_end(position) <= durable_end:
            damaged = store.disk.make_unreadable(file, position)
            self.faults["unreadable block"] += 1
        else:
            store.disk.rot(file, position)
        for key, place in store.journal().entries().items():
            end = place.position + RECORD_HEADER_BYTES + place.length
            if place.file == file and place.position < damaged.stop and damaged.start < end:
                self.checkers.damaged(store.replica, key)

    def heal(self, stays_down: Store | None) -> None:
        """End all faults. One store may stay down."""
        self.network.heal()
        self.metadata.has_faults = False
        self.metadata.outage_until = 0
        self.scheduler.resume_all()
        for store in self.stores:
            store.disk.is_full = store.disk.fail_next_sync = store.disk.fail_next_write = False
            store.disk.fail_next_create = False
            store.slow_until = 0
            store.dies_in_commit = False
            if store is stays_down:
                store.stop()
                store.is_retired = True
            elif self.faults["rot"] and store.is_running:
                store.crash()  # the start finds what has rotted, instead of one read after the other
            else:
                store.start()

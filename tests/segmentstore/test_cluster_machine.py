"""Any interleaving of beats, looks, crashes, stops and moves: the next owner begins with all that was acknowledged, and
two owners never both acknowledge; unless a log was given up or went with its disk.

The stores are models (a container is a list of events), what decides is real: leases, map, claims, duties, workflows.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import Duty, StoreLease, duty_when_closed, duty_when_open
from headrace.model.containers import (
    CLUSTER_PARTITION,
    ContainerClaim,
    SnapshotPointer,
    claim_sort,
    snapshot_body,
    snapshot_sort,
)
from headrace.ports.metadata_store import Check, Create, Key, Replace, WriteConflictError
from headrace.segmentstore.lease_gate import LeaseGate
from headrace.workflows.detect_failed_stores import detect_failed_stores, end_lease_of_task
from segmentstore_fargate.membership import Membership, Place
from segmentstore_fargate.registration import claim_if_unchanged

CONTAINERS = 2
NAMES = ("a", "b")
GRACE_MS = 30_000
PLACE = Place(CONTAINERS, tuple(range(CONTAINERS)))

names, containers = st.sampled_from(NAMES), st.integers(0, CONTAINERS - 1)


class ModelStore:
    """A process; `logs` are on its disk and outlive it: epoch and events by container."""

    def __init__(self, name: str, logs: dict[int, tuple[int, list[int]]], machine: Any) -> None:
        self.name, self.logs, self.machine = name, logs, machine
        self.owned: dict[int, Any] = {}
        self.gate = LeaseGate(machine.clock)
        identity = StoreLease(name, "h", 1, f"zone-{name}", 100, f"disk-{name}", f"task-{name}", GRACE_MS)
        store: Any = self
        self.membership = Membership(store, machine.metadata, machine.clock, identity, PLACE, machine.fatal.append)
        self.seconds = machine.clock.monotonic_s()
        assert not self.membership._try_to_register()
        self.membership._extend(self.seconds)
        self.membership._find_place()

    def beat(self) -> None:
        """As `Membership.beat`, at one moment."""
        started_s = self.machine.clock.monotonic_s()
        self.membership._renew()
        self.membership._take_map(ClusterRecords(self.machine.metadata).container_map())
        self.membership._extend(started_s)

    def opened(self, container: int, epoch: int) -> None:
        log = SimpleNamespace(fail=lambda _error: self.owned.pop(container))
        self.owned[container] = SimpleNamespace(container=SimpleNamespace(epoch=epoch, log=log))


class ClusterMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock, self.metadata, self.fatal = ManualClock(), MemoryMetadataStore(TornReads(0)), []
        self.disks: dict[str, dict[int, tuple[int, list[int]]]] = {name: {} for name in NAMES}
        self.running: dict[str, ModelStore] = {}
        self.tier_2: dict[int, list[int]] = {each: [] for each in range(CONTAINERS)}
        self.acknowledged: dict[int, list[int]] = {each: [] for each in range(CONTAINERS)}
        self.next_event = 0

    @rule(name=names)
    def start(self, name: str) -> None:
        if name not in self.running:
            self.running[name] = ModelStore(name, self.disks[name], self)

    @rule(name=names)
    def crash(self, name: str) -> None:
        self.running.pop(name, None)

    @rule(name=names)
    def task_stops(self, name: str) -> None:
        self.running.pop(name, None)
        self.disks[name] = {}
        end_lease_of_task(self.metadata, self.clock, CONTAINERS, f"task-{name}")

    @rule(name=names)
    def beat(self, name: str) -> None:
        if name in self.running:
            self.running[name].beat()

    @rule(name=names)
    def work(self, name: str) -> None:
        """What a running store does every few seconds."""
        self.start(name)
        self.beat(name)
        for container in range(CONTAINERS):
            self.settle(name, container)
            self.append(container)

    @rule(name=names)
    def long_absence(self, name: str) -> None:
        """A store is silent until its logs are given up, and the others go on."""
        for _ in range(5):
            self.clock.advance(12_001)
            self.look()
            for other in self.running.keys() - {name}:
                self.work(other)

    @rule(milliseconds=st.sampled_from([1, 1_000, 3_000, 9_000, 12_001, GRACE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def look(self) -> None:
        detect_failed_stores(self.metadata, self.clock, CONTAINERS)

    @rule(name=names, container=containers)
    def settle(self, name: str, container: int) -> None:
        """What a store does about one container, by the map as it last saw it."""
        store = self.running.get(name)
        if store is None:
            return
        seen = store.membership._map.map
        owned = store.owned.get(container)
        if owned is not None:
            if duty_when_open(name, container, owned.container.epoch, seen) is Duty.HAND_OVER:
                self._hand_over(store, container)
            return
        (state,) = ClusterRecords(self.metadata).containers([container])
        if state.pointer is not None and container in store.logs and state.pointer.epoch > store.logs[container][0]:
            del store.logs[container]
        if duty_when_closed(name, container, state.hold, seen) is Duty.OPEN:
            claim = ContainerClaim(name, "h", 1, "z")
            epoch = claim_if_unchanged(self.metadata, container, claim, state.epoch)
            if epoch is not None:
                self._open(store, container, epoch, lossy=state.hold is not None)

    def _open(self, store: ModelStore, container: int, epoch: int, *, lossy: bool) -> None:
        if container in store.logs:
            events = store.logs[container][1]
        else:
            events = list(self.tier_2[container])
            self._point(container, epoch, clean=False)
            if lossy:  # the log was given up, or went with its disk
                self.acknowledged[container] = list(events)
        assert events == self.acknowledged[container]
        store.logs[container] = (epoch, events)
        store.opened(container, epoch)

    def _hand_over(self, store: ModelStore, container: int) -> None:
        epoch, events = store.logs[container]
        del store.owned[container]
        self._flush_of(container, epoch, events)
        if self._point(container, epoch, clean=True):
            del store.logs[container]

    def _flush_of(self, container: int, epoch: int, events: list[int]) -> None:
        claim = self.metadata.get(Key(CLUSTER_PARTITION, claim_sort(container)))
        if claim is not None and claim.version == epoch:
            self.tier_2[container] = list(events)

    def _point(self, container: int, epoch: int, *, clean: bool) -> bool:
        """Write the snapshot pointer under the claim of this epoch."""
        key = Key(CLUSTER_PARTITION, snapshot_sort(container))
        found = self.metadata.get(key)
        body = snapshot_body(SnapshotPointer("o", 1, 1, epoch, clean))
        write = Create(key, body) if found is None else Replace(key, body, found.version)
        try:
            self.metadata.write(Check(Key(CLUSTER_PARTITION, claim_sort(container)), epoch), write)
        except WriteConflictError:
            return False
        return True

    @rule(name=names, container=containers)
    def flush(self, name: str, container: int) -> None:
        store = self.running.get(name)
        if store is not None and container in store.owned:
            self._flush_of(container, *store.logs[container])

    @rule(container=containers)
    def append(self, container: int) -> None:
        """Every store that takes it tries; what is not acknowledged is not in the model's log either."""
        acknowledging = [one for one in self.running.values() if container in one.owned and one.gate.is_open]
        assert len(acknowledging) <= 1, "two owners acknowledge"
        for store in acknowledging:
            events = store.logs[container][1]
            assert events == self.acknowledged[container]
            self.next_event += 1
            events.append(self.next_event)
            self.acknowledged[container].append(self.next_event)

    @invariant()
    def at_most_one_owner_acknowledges(self) -> None:
        for container in range(CONTAINERS):
            owners = [
                one.name for one in getattr(self, "running", {}).values() if container in one.owned and one.gate.is_open
            ]
            assert len(owners) <= 1, owners

    def teardown(self) -> None:
        for _ in range(3):  # left alone, everything is served again and nothing is stuck
            for name in NAMES:
                self.start(name)
            self.clock.advance(1)
            for name in NAMES:
                self.beat(name)
            self.look()
            for _twice in range(2):
                for name in NAMES:
                    self.beat(name)
                    for container in range(CONTAINERS):
                        self.settle(name, container)
        served = sorted(container for one in self.running.values() for container in one.owned)
        assert served == list(range(CONTAINERS))
        assert not self.fatal
        for container in range(CONTAINERS):
            self.append(container)


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

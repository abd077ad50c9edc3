"""Any interleaving of beats, looks, crashes, stops and moves: the next owner begins with all that was acknowledged, and
only the owner of the claim acknowledges; unless a log was given up or went with its disk.

The stores are models (a container is a list of events), what decides is real: leases, map, claims, duties, workflows.
A heartbeat and an opening are real coroutines whose requests are made and answered one at a time, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.controller.ticks.assign_containers import detect_failed_stores, end_lease_of_task
from headrace.metadata.cluster_records import ClusterRecords, ContainerState, claim_sort, snapshot_body, snapshot_sort
from headrace.model.cluster import ContainerAction, StoreLease, action_when_closed, action_when_open
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, SnapshotPointer
from headrace.model.errors import FencedError, HeadraceError
from headrace.ports.metadata_store import Check, Create, Key, Replace, WriteConflictError
from headrace.segmentstore.lease_gate import LeaseGate
from segmentstore_fargate.membership import Membership, Place
from segmentstore_fargate.registration import claim_free_container

CONTAINERS = 2
NAMES = ("a", "b", "c")
GRACE_MS = 30_000
PLACE = Place(CONTAINERS, tuple(range(CONTAINERS)))

names, containers = st.sampled_from(NAMES), st.integers(0, CONTAINERS - 1)


class Request:
    """A request of a coroutine to the metadata store: made and answered when the machine says so."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __await__(self) -> Generator[Callable[[], Any], Any, Any]:
        return (yield self.call)


class Conversation:
    """A coroutine between two requests. It ends by itself or with an error of the project's tree."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self.work, self.over = work, False
        self.call: Callable[[], Any] | None = None
        self.answer: tuple[Any, HeadraceError | None] | None = None
        self._resume(None, None)

    def step(self) -> None:
        """Make the request, or tell the answer to the one that was made."""
        if self.answer is not None:
            answer, self.answer = self.answer, None
            self._resume(*answer)
        elif self.call is not None:
            call, self.call = self.call, None
            try:
                self.answer = call(), None
            except HeadraceError as error:
                self.answer = None, error

    def finish(self) -> None:
        while not self.over:
            self.step()

    def _resume(self, value: Any, error: HeadraceError | None) -> None:
        try:
            self.call = self.work.send(value) if error is None else self.work.throw(error)
        except (StopIteration, HeadraceError):
            self.over = True


class ModelStore:
    """A process; `logs` are on its disk and outlive it: epoch and events by container."""

    flush_lag_s = 0.0

    def __init__(self, name: str, logs: dict[int, tuple[int, list[int]]], machine: ClusterMachine) -> None:
        self.name, self.logs, self.machine = name, logs, machine
        self.owned: dict[int, int] = {}
        self.opening: dict[int, int] = {}
        self.gate = LeaseGate(machine.clock)
        identity = StoreLease(name, "h", 1, f"zone-{name}", 100, f"disk-{name}", f"task-{name}", GRACE_MS)
        store: Any = self
        self.membership = Membership(store, machine.metadata, machine.clock, identity, PLACE, machine.fatal.append)
        self.heartbeat = self.membership.heartbeat
        self.heartbeat.in_thread = Request  # type: ignore[assignment]
        Conversation(self.heartbeat.register()).finish()
        self.heartbeat.take_map(self.membership._find_place())
        self.membership._looked = True
        self.beating: Conversation | None = None
        self.openings: dict[int, Conversation] = {}

    @property
    def claims(self) -> dict[int, int]:
        return self.opening | self.owned

    def lose_claim(self, container: int, epoch: int, _error: FencedError) -> None:
        for claims in (self.owned, self.opening):
            if claims.get(container) == epoch:
                del claims[container]

    def beat(self) -> None:
        """One at one moment; one that was under way is brought to its end first."""
        self.step_beat()
        assert self.beating is not None
        self.beating.finish()
        self.step_beat()
        self.beating.finish()

    def step_beat(self) -> None:
        if self.beating is None or self.beating.over:
            self.beating = Conversation(self.heartbeat.beat())
        else:
            self.beating.step()

    async def open(self, state: ContainerState) -> None:
        container, claim = state.container, ContainerClaim(self.name, "h", 1, "z")
        records, clock = ClusterRecords(self.machine.metadata), self.machine.clock
        epoch = await Request(lambda: claim_free_container(records, state, claim, clock.now_ms()))
        if epoch is None:
            return
        self.opening[container] = epoch
        try:
            self.machine.recovered(self, container, epoch, lossy=state.hold is not None)
            await self.heartbeat.confirm(container, epoch)
            if self.opening.get(container) == epoch:
                self.owned[container] = epoch
        finally:
            self.opening.pop(container, None)


class ClusterMachine(RuleBasedStateMachine):
    @initialize(working=st.sets(names))
    def begin(self, working: set[str]) -> None:
        self.clock, self.metadata, self.fatal = ManualClock(), MemoryMetadataStore(TornReads(0)), []
        self.disks: dict[str, dict[int, tuple[int, list[int]]]] = {name: {} for name in NAMES}
        self.running: dict[str, ModelStore] = {}
        self.tier_2: dict[int, list[int]] = {each: [] for each in range(CONTAINERS)}
        self.acknowledged: dict[int, list[int]] = {each: [] for each in range(CONTAINERS)}
        self.next_event = 0
        for name in sorted(working):
            self.work(name)

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
    def beat_steps(self, name: str) -> None:
        if name in self.running:
            self.running[name].step_beat()

    @rule(name=names, container=containers)
    def opening_steps(self, name: str, container: int) -> None:
        if name in self.running and container in self.running[name].openings:
            self.running[name].openings[container].step()

    @rule(name=names)
    def work(self, name: str) -> None:
        """What a running store does every few seconds."""
        self.start(name)
        self.beat(name)
        for container in range(CONTAINERS):
            self.settle(name, container)
            self.append(container)

    @rule(
        name=names,
        opened_steps=st.integers(0, 8),
        crashes=st.booleans(),
        taken=st.booleans(),
        returns=st.booleans(),
    )
    def long_absence(self, name: str, opened_steps: int, crashes: bool, taken: bool, returns: bool) -> None:
        """A store is silent until its logs are given up; the others go on with them, before or after it is back.

        It may be about to open containers when it falls silent, and it may have ended and keep its disk.
        """
        for container in range(CONTAINERS):
            self.look_at(name, container)
            for _ in range(opened_steps):
                self.opening_steps(name, container)
        if crashes:
            self.crash(name)
        others = sorted(self.running.keys() - {name})
        for _ in range(4):
            self.clock.advance(12_001)
            self.look()
            for other in others:
                self.running[other].beat()
                if taken:
                    self.work(other)
        if returns:
            self.start(name)
            self.beat(name)
            for container in range(CONTAINERS):
                for other in others:
                    self.settle(other, container)
                self.settle(name, container)
                self.append(container)

    @rule(name=names)
    def replace_silent_owner(self, name: str) -> None:
        """What the lease gate is for: others have replaced a store that does not know it, and that gets appends."""
        for each in NAMES:
            self.work(each)
        self.long_absence(name, 0, False, True, False)
        self.look()  # the others have leases again, so containers can move to them
        for other in sorted(self.running.keys() - {name}):
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
        self.look_at(name, container)
        if name in self.running and container in self.running[name].openings:
            self.running[name].openings[container].finish()

    @rule(name=names, container=containers)
    def look_at(self, name: str, container: int) -> None:
        store = self.running.get(name)
        if store is None or (container in store.openings and not store.openings[container].over):
            return
        seen = store.heartbeat.map.map
        if container in store.owned:
            if action_when_open(name, container, seen) is ContainerAction.HAND_OVER:
                self._hand_over(store, container)
            return
        (state,) = ClusterRecords(self.metadata).containers([container])
        if state.pointer is not None and container in store.logs and state.pointer.epoch > store.logs[container][0]:
            del store.logs[container]
        if action_when_closed(name, container, state.hold, seen) is ContainerAction.OPEN:
            store.openings[container] = Conversation(store.open(state))

    def recovered(self, store: ModelStore, container: int, epoch: int, *, lossy: bool) -> None:
        acknowledged = self.acknowledged[container]
        if container in store.logs:
            events = store.logs[container][1]
        else:
            events = list(self.tier_2[container])
            if not self._point(container, epoch, clean=False):
                raise FencedError("taken over while it was opened")
            if lossy:  # the log was given up, or went with its disk
                acknowledged[:] = events
        assert events[: len(acknowledged)] == acknowledged
        acknowledged[:] = events  # what was logged and not acknowledged is there all the same
        store.logs[container] = (epoch, events)

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
        record = self.metadata.get(key)
        body = snapshot_body(SnapshotPointer("o", 1, 1, epoch, clean))
        write = Create(key, body) if record is None else Replace(key, body, record.version)
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
        """Every store that takes it logs it; what the gate holds back is acknowledged when it opens."""
        for store in self.running.values():
            if container in store.owned:
                self.next_event += 1
                epoch, events = store.logs[container]
                events.append(self.next_event)
                report = partial(self._acknowledge, store, container, epoch, list(events))
                if store.gate.is_open:
                    report()
                else:
                    store.gate.hold(report)

    def _acknowledge(self, store: ModelStore, container: int, epoch: int, events: list[int]) -> None:
        if store.owned.get(container) != epoch:
            return  # its log has failed
        claim = self.metadata.get(Key(CLUSTER_PARTITION, claim_sort(container)))
        assert claim is not None
        assert claim.version == epoch, "acknowledged by a store that is not the owner"
        acknowledged = self.acknowledged[container]
        assert events[: len(acknowledged)] == acknowledged
        acknowledged[:] = events

    @invariant()
    def at_most_one_owner_acknowledges(self) -> None:
        for container in range(CONTAINERS):
            owners = [
                store.name
                for store in getattr(self, "running", {}).values()
                if container in store.owned and store.gate.is_open
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
                    for opening in self.running[name].openings.values():
                        opening.finish()
                    for container in range(CONTAINERS):
                        self.settle(name, container)
        served = sorted(container for store in self.running.values() for container in store.owned)
        assert served == list(range(CONTAINERS))
        assert not self.fatal
        for container in range(CONTAINERS):
            self.append(container)


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

"""Simulated stores on their volumes, the controller's tick, and the faults of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

from fuzz.lanes import Lane
from fuzz.randomness import Random
from fuzz.table_lane import TableLane
from headrace import wire
from headrace.controller.ticks.assign_containers import detect_failed_stores, end_lease_of_task
from headrace.metadata.cluster_records import ClusterRecords, find_claim
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import HeadraceError
from headrace.model.log_classes import NUMBER_BLOCK
from simulation.draws import Draws
from simulation.scheduler import MS, SECOND
from simulation.store_level.connections import StoreConnection
from simulation.store_level.lane_client import LaneClient
from simulation.store_level.replicas import ReplicaCluster, zone_of
from simulation.store_level.replicated_process import ReplicatedStoreProcess
from simulation.store_level.store_process import RESTART_AFTER, StoreProcess
from simulation.store_level.swarm import LATER_FAULTS, POWER_FAULT, REPLICA_FAULTS, SCHEDULED_FAULTS, StoreSwarm
from simulation.store_level.tier_two import SimulatedClock, SimulatedMetadataStore, TierTwo
from simulation.world.loop import SimulatedProcess, new_loop
from simulation.world.volume import Volume

_CONTROLLER_EVERY_S: Final = 5.0
_PAUSE: Final = (50 * MS, 15 * SECOND)
_SUSPECTED_PAUSE: Final = (4 * SECOND, 15 * SECOND)
_SLOW_DISK: Final = (200 * MS, 4 * SECOND)
_STALLED_DISK: Final = (SECOND, 20 * SECOND)
_OUTAGE: Final = (200 * MS, 6 * SECOND)
_HAND_OVER_OUTAGE: Final = (10 * SECOND, 14 * SECOND)
_STOP_IN_OUTAGE: Final = (0, 9 * SECOND)
"""An outage that begins during a hand-over is longer than that may last, and the store is told to stop meanwhile."""

_TABLE_PAYLOAD_MAX: Final = 4_000
"""A batch of a table has several, and at most half of the smallest cache."""

_LOOK_EVERY: Final = 5 * MS
_LOOKS: Final = 2000
_EMPTIED_RATE: Final = 0.5
_TASK_EVENT_RATE: Final = 0.7
_TASK_EVENT: Final = (100 * MS, 5 * SECOND)
"""Whether and when the controller learns that a task has stopped. Otherwise the lease of its store expires."""


class StoreCluster:
    """The whole of one run. `faults` counts what was injected."""

    def __init__(self, draws: Draws, swarm: StoreSwarm) -> None:
        self.loop = new_loop(draws)
        self.swarm = swarm
        self.faults: Counter[str] = Counter()
        self.restarts = 0
        self.restarts_held = False
        self.tier_two = TierTwo(self.loop, dict(swarm.request), self.faults)
        self.stores: list[StoreProcess | None] = [None] * swarm.stores
        self.volumes = [Volume(draws, number, swarm.commit_delay) for number in range(swarm.stores)]
        self.clients: list[LaneClient] = []
        self._draws = draws
        self._controller = self.loop.new_process("controller")
        self.replicas: ReplicaCluster | None = None
        if swarm.copies > 1:
            self.replicas = ReplicaCluster(
                self.loop, self.tier_two, swarm.layout.count, swarm.network_delay, self._replicated
            )

    @property
    def running(self) -> list[StoreProcess]:
        return [each for each in self.stores if each is not None and each.process.is_alive]

    def start(self) -> None:
        """Start everything, and schedule the faults of the run."""
        for number in range(self.swarm.stores):
            self.loop.scheduler.after(number * self.swarm.start_every, "first start", partial(self.start_store, number))
        self._controller.spawn(self._control())
        for number in range(self.swarm.lanes + self.swarm.table_lanes):
            payload_bytes_max = self.swarm.payload_bytes_max
            if number >= self.swarm.lanes:
                payload_bytes_max = min(payload_bytes_max, _TABLE_PAYLOAD_MAX)
            self.clients.append(
                LaneClient(self.loop, number, self._new_lane(number), self, self.when_settled, payload_bytes_max)
            )
        for actor, kind in enumerate(SCHEDULED_FAULTS):
            self._schedule(kind, actor)

    def _new_lane(self, number: int) -> Lane | TableLane:
        random = Random(self._draws.number("lane", number))
        if number >= self.swarm.lanes:
            return TableLane(f"scope/table{number}", random)
        in_s3 = self._draws.happens(self.swarm.s3_lane_rate, "lane in S3", number)
        return Lane(f"scope/lane/{number + (NUMBER_BLOCK if in_s3 else 0)}", random)

    def start_store(self, number: int) -> None:
        """Start a store on its volume, unless it runs."""
        former = self.stores[number]
        if not self.restarts_held and (former is None or not former.process.is_alive):
            self.restarts += former is not None
            arguments = self.loop, self.swarm, self.tier_two, number, self.volumes[number], self._ended
            replicas = self.replicas
            if replicas is None:
                self.stores[number] = StoreProcess(*arguments)
            else:
                self.stores[number] = ReplicatedStoreProcess(
                    replicas.network, zone_of(number), replicas.note_replica, *arguments
                )

    def heal(self) -> None:
        """End all faults, and start what does not run."""
        self.tier_two.heal()
        self.loop.scheduler.resume_all()
        if self.replicas is not None:
            self.replicas.heal()
        for number, volume in enumerate(self.volumes):
            volume.heal()
            self.start_store(number)

    def empty_volumes(self) -> None:
        """Give each store an empty volume. No store runs."""
        for number in range(self.swarm.stores):
            self._empty_volume(number)

    def may_replace(self, number: int) -> bool:
        """Whether no log needs the volume of this store."""
        return self.replicas is not None and self.replicas.may_lose(number)

    def replace(self, number: int) -> None:
        """Kill a store, and start another one on an empty volume in its place."""
        store = self.stores[number]
        if store is not None:
            store.kill()
        former = self.volumes[number]
        self._empty_volume(number)
        self._start_later(number)
        if self._draws.happens(_TASK_EVENT_RATE, "task event", number):
            delay = self._draws.between(*_TASK_EVENT, "task event delay", number)
            self.loop.scheduler.after(delay, "task event", partial(self._tell_task_ended, former.task))

    def accept_losses(self, destroyed: Collection[ReplicaId]) -> None:
        """Accept the loss of logs that need a destroyed replica, and tell the clients."""
        lost = set(self.replicas.accept_loss(destroyed)) if self.replicas is not None else set()
        if lost:
            self.faults["accepted loss"] += len(lost)
            for client in self.clients:
                client.note_loss(lambda name: self.swarm.layout.container_of_segment(name) in lost)

    def stall_disk(self, number: int, duration: int) -> None:
        """Let no commit of a store end for a while, without an error. One begins now."""
        self.volumes[number].stalled_until = self.loop.scheduler.now + duration
        store = self.stores[number]
        if store is not None and store.process.is_alive and store.journal is not None:
            with suppress(HeadraceError):
                store.journal.when_durable(lambda _error: None)

    def holds(self) -> list[int]:
        """Containers that need the log of some store."""
        if self.replicas is not None:
            return self.replicas.unheld()
        states = ClusterRecords(self.tier_two.metadata).containers(range(self.swarm.layout.count))
        return [state.container for state in states if state.hold is not None]

    def is_served(self) -> bool:
        """Whether each container is served by a store."""
        return all(self._serving(container) for container in range(self.swarm.layout.count))

    def is_served_without(self, number: int) -> bool:
        """Whether each container whose log is on stores is served by another store than this one."""
        containers = range(self.swarm.layout.store_containers)
        return all(any(each.number != number for each in self._serving(container)) for container in containers)

    def openings(self) -> str:
        """Why containers are not served, for a report."""
        found = [
            f"; store {each.number} opens container {number}: {opening.progress.step}, {opening.progress.error}"
            for each in self.running
            if each.store is not None
            for number, opening in each.store.openings.items()
        ]
        return "".join(found)

    def when_settled(self, done: Callable[[], None]) -> None:
        """Call `done` when every store has processed what it has accepted, or has ended."""
        waiting = [(each, [False]) for each in self.running]
        for store, settled in waiting:
            store.when_settled(partial(settled.__setitem__, 0, True))

        def look() -> None:
            if all(settled[0] or not store.process.is_alive for store, settled in waiting):
                done()
            else:
                self.loop.scheduler.after(100 * MS, "look whether settled", look)

        look()

    # StoreDirectory

    def find(self, segment: str) -> SimulatedProcess | None:
        """A store that serves the segment; with one copy perhaps a former owner that does not know it yet.

        With three copies it is the one that the controller names, and none until that one serves the segment. A former
        owner may answer what was true when it was the owner.
        """
        container = self.swarm.layout.container_of_segment(segment)
        found = self._serving(container)
        if self.replicas is not None:
            epoch = self.claimed_epoch(segment)
            found = [each for each in found if each.epoch(container) == epoch]
        return self._draws.one_of(found, "which server").process if found else None

    def claimed_epoch(self, segment: str) -> int | None:
        claim = find_claim(self.tier_two.metadata, self.swarm.layout.container_of_segment(segment))
        return None if claim is None else claim[1]

    def dial(
        self, server: SimulatedProcess, client: SimulatedProcess, deliver: Callable[[wire.WireCommand | None], None]
    ) -> StoreConnection:
        """A connection to the store that runs in a process, or ran in it."""
        for store in self.running:
            if store.process is server:
                return store.connect(client, deliver)
        dead = StoreConnection(self.loop, client, server, self.swarm.network_delay, deliver)
        dead.reset()
        return dead

    # Inside

    def _serving(self, container: int) -> list[StoreProcess]:
        return [each for each in self.running if each.epoch(container) is not None]

    def _replicated(self) -> list[ReplicatedStoreProcess]:
        return [each for each in self.running if isinstance(each, ReplicatedStoreProcess)]

    async def _control(self) -> None:
        metadata, clock = SimulatedMetadataStore(self.tier_two), SimulatedClock(self.loop)
        while True:
            try:
                await asyncio.to_thread(detect_failed_stores, metadata, clock, self.swarm.layout.count)
            except HeadraceError as error:
                self.loop.scheduler.note(f"tick failed: {error}")
            await asyncio.sleep(_CONTROLLER_EVERY_S)

    def _tell_task_ended(self, task: str) -> None:
        self._controller.spawn(self._task_ended(task))

    async def _task_ended(self, task: str) -> None:
        metadata, clock = SimulatedMetadataStore(self.tier_two), SimulatedClock(self.loop)
        try:
            await asyncio.to_thread(end_lease_of_task, metadata, clock, self.swarm.layout.count, task)
        except HeadraceError as error:
            self.loop.scheduler.note(f"task event failed: {error}")

    def _ended(self, store: StoreProcess) -> None:
        """With one copy a store that has ended may lose its volume if no container needs its log."""
        if self.swarm.copies == 1 and self._draws.happens(_EMPTIED_RATE, "emptied", store.number):
            states = ClusterRecords(self.tier_two.metadata).containers(range(self.swarm.layout.count))
            held = [each.hold for each in states if each.hold is not None and not each.hold.log_in_s3]
            if store.name not in {each.store_id for each in held}:
                self._empty_volume(store.number)
                self.faults["empty volume"] += 1
        self._start_later(store.number)

    def _cut_power_of_all(self) -> None:
        for each in self.running:
            each.kill()
            self._start_later(each.number)
        for volume in self.volumes:  # a store that was killed before has not synced everything either
            volume.cut_power()

    def _empty_volume(self, number: int) -> None:
        former = self.volumes[number]
        self.volumes[number] = Volume(self._draws, number, self.swarm.commit_delay, former.generation + 1)

    def _start_later(self, number: int) -> None:
        delay = self._draws.between(*RESTART_AFTER, "restart", number)
        self.loop.scheduler.after(delay, "restart", partial(self.start_store, number))

    def _schedule(self, kind: str, actor: int) -> None:
        rate = self.swarm.scheduled.get(kind)
        if rate is None:
            return
        delay = self._draws.between(1, int(2 * SECOND / rate), f"time of {kind}", actor)

        def happen() -> None:
            if self.loop.scheduler.now < self.swarm.duration:
                self._inject(kind, actor)
                self._schedule(kind, actor)

        self.loop.scheduler.after(delay, kind, happen)

    def _owns_something(self, store: StoreProcess) -> bool:
        return any(store.epoch(container) is not None for container in range(self.swarm.layout.count))

    def _slow_down(self, volume: Volume, actor: int) -> None:
        volume.slow_until = self.loop.scheduler.now + self._draws.between(*_SLOW_DISK, "amount", actor)

    def _inject_into_replicas(self, replicas: ReplicaCluster, kind: str, actor: int, number: int) -> bool:
        """Whether the fault was injected."""
        if kind == "wrong suspicion":
            return replicas.suspect(number, SimulatedClock(self.loop))
        if kind == "suspected in a pause":
            store = self.stores[number]
            if store is None or not store.process.is_alive or not self._owns_something(store):
                return False
            self.loop.scheduler.pause(store.process.number, self._draws.between(*_SUSPECTED_PAUSE, "amount", actor))
            return replicas.suspect(number, SimulatedClock(self.loop))
        if kind == "slow owner":
            owners = [each for each in self.running if self._owns_something(each)]
            if not owners:
                return False
            self._slow_down(self._draws.one_of(owners, "which owner", actor).volume, actor)
        elif kind == "unreadable sector":
            store, volume = self.stores[number], self.volumes[number]
            if store is None or not self.may_replace(number) or not volume.lose_sector():
                return False
            store.kill()  # the start finds it
            self._start_later(number)
        elif kind == "replace volume":
            if not self.may_replace(number):
                return False
            self.replace(number)
        elif kind == "stalled disk":
            self.stall_disk(number, self._draws.between(*_STALLED_DISK, "amount", actor))
        elif kind == "reset links":
            replicas.reset_links(number, self._draws.below(self.swarm.stores, "other store", actor))
        else:
            other = None if kind == "cut store" else self._draws.below(self.swarm.stores, "other store", actor)
            replicas.cut(number, other, replicas.cut_time(actor))
        return True

    def _fail_next_hand_over(self, kind: str, actor: int, looks: int) -> None:
        """Begin an outage of tier 2 as soon as a store hands a container over, and stop the store meanwhile."""
        store = next((each for each in self.running if each.hands_over), None)
        if store is None:
            if looks:
                again = partial(self._fail_next_hand_over, kind, actor, looks - 1)
                self.loop.scheduler.after(_LOOK_EVERY, "look for a hand-over", again)
            return
        until = self.loop.scheduler.now + self._draws.between(*_HAND_OVER_OUTAGE, "amount", actor)
        if self._draws.happens(0.5, "of DynamoDB", actor):
            self.tier_two.metadata_out_until = until
        else:
            self.tier_two.chunks_out_until = until
        self.loop.scheduler.after(self._draws.between(*_STOP_IN_OUTAGE, "stop", actor), "stop", store.stop)
        self.faults[kind] += 1

    def _inject(self, kind: str, actor: int) -> None:
        now, draws = self.loop.scheduler.now, self._draws
        number = draws.below(self.swarm.stores, "store", actor)
        store, volume = self.stores[number], self.volumes[number]
        if kind in REPLICA_FAULTS or kind in LATER_FAULTS:
            if self.replicas is None or not self._inject_into_replicas(self.replicas, kind, actor, number):
                return
        elif kind == "metadata outage":
            self.tier_two.metadata_out_until = now + draws.between(*_OUTAGE, "amount", actor)
        elif kind == "chunk outage":
            self.tier_two.chunks_out_until = now + draws.between(*_OUTAGE, "amount", actor)
        elif kind == "outage in a hand-over":
            self._fail_next_hand_over(kind, actor, _LOOKS)
            return
        elif kind == "slow disk":
            self._slow_down(volume, actor)
        elif kind in ("write error", "sync error"):
            volume.fail_next(kind.split()[0])
        elif kind == POWER_FAULT:
            self._cut_power_of_all()
        elif store is None or not store.process.is_alive:
            return
        elif kind == "pause":
            self.loop.scheduler.pause(store.process.number, draws.between(*_PAUSE, "amount", actor))
        elif kind == "reset connections":
            store.reset_connections()
        elif kind == "stop in order":
            store.stop()
        else:
            store.kill()
            if kind == "power cut":
                volume.cut_power()
            self._start_later(number)
        self.faults[kind] += 1

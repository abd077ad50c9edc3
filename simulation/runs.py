"""One run: the tape of a seed is played, then faults end, and the cluster must serve again and have lost nothing."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Final

from headrace.model.container_logs import ContainerLog, LogState
from simulation.checkers import Violation
from simulation.cluster import ZONES, Cluster
from simulation.draws import Draws
from simulation.scheduler import SECOND
from simulation.swarm import draw_swarm
from simulation.tape import Step, draw_tape

SERVED_WITHIN: Final = 20 * SECOND
WHOLE_WITHIN: Final = 60 * SECOND
_APPEND_EVERY: Final = SECOND // 5


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run. `digest` is the same whenever the same seed and tape are run by the same code."""

    seed: int
    violations: tuple[Violation, ...]
    digest: int
    events: int
    acknowledged: int
    faults: Counter[str]
    states: Counter[str]


def run_seed(seed: int, tape: list[Step] | None = None) -> Run:
    """Run a seed, with its own tape or with a part of it."""
    draws = Draws(seed)
    swarm = draw_swarm(draws)
    cluster = Cluster(draws, swarm)
    steps = draw_tape(draws, swarm)
    try:
        cluster.play(steps if tape is None else tape)
        cluster.scheduler.run_until(swarm.duration)
        _check_liveness(cluster)
    except Exception as error:  # noqa: BLE001 - whatever it is, the report names the seed
        where = traceback.extract_tb(error.__traceback__)[-1]
        cluster.checkers.violated("machine", f"{where.name}, line {where.lineno}: {error!r}")
    return Run(
        seed,
        tuple(cluster.checkers.violations),
        cluster.scheduler.digest,
        cluster.scheduler.events,
        cluster.checkers.acknowledged_count,
        cluster.faults,
        cluster.checkers.states,
    )


def _check_liveness(cluster: Cluster) -> None:
    """I12: after faults end, all containers that can be recovered are served, by as many copies as there are zones."""
    stays_down = None
    if cluster.draws.happens(0.3, "store stays down"):
        stays_down = cluster.draws.one_of(cluster.stores, "which store stays down")
    cluster.heal(stays_down)
    healed = cluster.scheduler.now
    ends = [None] * cluster.swarm.containers
    targets: list[int | None] = list(ends)
    served: set[int] = set()
    whole: set[int] = set()

    def look() -> None:
        for container in range(cluster.swarm.containers):
            owner = cluster.serving(container)
            if owner is None or owner.writer is None:
                targets[container] = None
            elif targets[container] is None and owner.takes_entries:
                targets[container] = owner.writer.next_entry
            cluster.append(container, 10)
            target = targets[container]
            if target is not None and cluster.checkers.acknowledged_end[container] > target:
                served.add(container)
            if _is_whole(cluster, container):
                whole.add(container)
            else:
                whole.discard(container)
        cluster.scheduler.after(_APPEND_EVERY, "look for service", look)

    look()
    everything = set(range(cluster.swarm.containers))
    cluster.scheduler.run_until(healed + SERVED_WITHIN, lambda: served == everything)
    lost = {container for container in everything - served if _may_be_blocked(cluster, container)}
    for container in everything - served - lost:
        cluster.checkers.violated(
            "I12", f"container {container} is not served {SERVED_WITHIN // SECOND} s after healing"
        )
    for _ in lost:
        cluster.checkers.state("blocked, and rightly so")
    lost -= _accept_losses(cluster, lost, served)
    cluster.scheduler.run_until(healed + WHOLE_WITHIN, lambda: whole | lost >= everything)
    for container in everything - whole - lost:
        cluster.checkers.violated(
            "I12", f"container {container} does not have its copies after {WHOLE_WITHIN // SECOND} s"
        )
    _check_by_takeover(cluster, everything - lost)


def _accept_losses(cluster: Cluster, blocked: set[int], served: set[int]) -> set[int]:
    """Let an operator accept the loss of destroyed members: containers that are served afterwards."""
    accepted = {container for container in blocked if cluster.metadata.accept_loss(container, cluster.destroyed)}
    cluster.scheduler.run_until(cluster.scheduler.now + SERVED_WITHIN, lambda: served >= accepted)
    for container in accepted - served:
        if not _may_be_blocked(cluster, container):
            what = f"container {container} is not served {SERVED_WITHIN // SECOND} s after its loss was accepted"
            cluster.checkers.violated("I12", what)
    return accepted & served


def _check_by_takeover(cluster: Cluster, containers: set[int]) -> None:
    """Let another store recover each container: the checkers compare what it finds with what was acknowledged."""
    epochs = {container: cluster.metadata.claims[container].version for container in sorted(containers)}

    def take_over(container: int) -> None:
        serving = cluster.serving(container)
        stores = [store for store in cluster.stores if store.is_running and store.owners.get(container) is not serving]
        if stores:
            cluster.take_over(container, cluster.draws.one_of(stores, "last takeover", container))

    def are_served() -> bool:
        return all(
            cluster.serving(container) is not None and cluster.metadata.claims[container].version > epoch
            for container, epoch in epochs.items()
        )

    for container in epochs:
        take_over(container)
    cluster.scheduler.run_until(cluster.scheduler.now + SERVED_WITHIN, are_served)
    if not are_served():
        cluster.checkers.violated("I12", "a takeover without faults did not end")


def _is_whole(cluster: Cluster, container: int) -> bool:
    log = cluster.metadata.logs[container].log
    if log is None:
        return False
    zones = {store.zone for store in cluster.stores if store.is_running}
    return len(log.members) >= min(ZONES, len(zones))


def _may_be_blocked(cluster: Cluster, container: int) -> bool:
    """Whether so many members are gone that the log must not be recovered without an operator."""
    log = cluster.metadata.logs[container].log
    if log is None or log.state is not LogState.OPEN:
        return False
    reachable = [member for member in log.members if cluster.address_of(member) is not None]
    if not log.ensemble.is_read_quorum(reachable):
        return True
    return cluster.faults["rot"] > 0 and _has_no_intact_copy(cluster, container, log)


def _has_no_intact_copy(cluster: Cluster, container: int, log: ContainerLog) -> bool:
    """Whether an entry was durable at a member that runs, and no replica that runs has it intact."""
    running = [store for store in cluster.stores if store.is_running]
    members = [store.process for store in running if store.process is not None and store.replica in log.members]
    truncated_before = max([log.truncated_before, *(process.log(container).truncated_before for process in members)])
    intact = {key for store in running for key in store.journal().entries()}
    had = cluster.checkers.had(
        container, log.chain, [store.replica for store in running if store.replica in log.members]
    )
    return any(entry >= truncated_before and (container, epoch, entry) not in intact for epoch, entry in had)

"""One run of whole stores: load and faults, then the end of all faults, service again, and nothing lost."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from simulation.draws import Draws
from simulation.scheduler import MS, SECOND
from simulation.store_level.cluster import StoreCluster
from simulation.store_level.replicas import ReplicaCluster
from simulation.store_level.swarm import draw_store_swarm
from simulation.world.loop import SimulatedLoop

SERVED_WITHIN: Final = 120 * SECOND
"""After faults have ended. A hand-over that began before may take its deadline of 60 s."""

CHECKED_WITHIN: Final = 120 * SECOND
WHOLE_WITHIN: Final = 60 * SECOND
STOPPED_WITHIN: Final = 120 * SECOND
_ANSWERS_AFTER: Final = 10
_LAST_ENTRIES: Final = (100 * MS, 1_800 * MS)
"""How long two of three members acknowledge without the third one; then the owner would remove it."""

_LOOK_AT_LOGS_EVERY: Final = 2 * SECOND


@dataclass(frozen=True, slots=True)
class StoreRun:
    """The result of a run. `digest` is the same whenever the same seed is run by the same code."""

    seed: int
    violations: tuple[str, ...]
    digest: int
    events: int
    answers: int
    checks: int
    restarts: int
    faults: Counter[str]


class _ViolatedError(Exception):
    """The run has found something."""


def run_store_seed(seed: int) -> StoreRun:
    """Run a seed."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # stores that are killed complain
    try:
        loop, run = _run(seed)
        loop.dispose()  # when nothing here refers to the stores any more
    finally:
        logging.disable(disabled)
    return run


def _run(seed: int) -> tuple[SimulatedLoop, StoreRun]:
    draws = Draws(seed)
    cluster = StoreCluster(draws, draw_store_swarm(draws))
    violations: list[str] = []
    try:
        _play(cluster)
    except _ViolatedError as found:
        violations.append(str(found))
    except Exception as error:  # noqa: BLE001 - whatever it is, the report names the seed
        where = traceback.extract_tb(error.__traceback__)[-1]
        violations.append(f"{where.name}, line {where.lineno}: {error!r}")
    loop, clients = cluster.loop, cluster.clients
    return loop, StoreRun(
        seed,
        tuple(violations),
        loop.scheduler.digest,
        loop.scheduler.events,
        sum(each.answers for each in clients),
        sum(each.verified for each in clients),
        cluster.restarts,
        cluster.faults,
    )


def _play(cluster: StoreCluster) -> None:
    loop, clients = cluster.loop, cluster.clients
    cluster.start()
    loop.run_until(cluster.swarm.duration, lambda: _has_failed(cluster))
    _check(cluster)
    cluster.loop.run_now(cluster.heal)
    _until(cluster, SERVED_WITHIN, cluster.is_served, "a container is not served")
    _until_answers(cluster)
    if cluster.replicas is not None and cluster.swarm.loses_two:
        _lose_two(cluster, cluster.replicas)
        _until_answers(cluster)
    if cluster.replicas is not None and cluster.loop.draws.happens(0.5, "a disk stalls"):
        _check_stalled_disk(cluster)
    for client in clients:
        client.stop()
    _until(cluster, CHECKED_WITHIN, lambda: all(each.is_idle for each in clients), "a client cannot check")
    if cluster.replicas is not None:
        _check_after_replacing_all(cluster)
        if cluster.loop.draws.happens(0.5, "one is cut off"):
            _check_cut_off(cluster, cluster.replicas)
    if cluster.replicas is None or cluster.loop.draws.happens(0.5, "all stop"):
        _check_from_tier_two(cluster)
    for client in clients:
        client.verify_again()
    _until(cluster, CHECKED_WITHIN, lambda: all(each.is_idle for each in clients), "a client cannot check")


def _until_answers(cluster: StoreCluster) -> None:
    clients = cluster.clients
    targets = [client.answers + _ANSWERS_AFTER for client in clients]
    _until(
        cluster,
        CHECKED_WITHIN,
        lambda: all(client.answers >= target for client, target in zip(clients, targets, strict=True)),
        "a client gets no answers",
    )


def _lose_two(cluster: StoreCluster, replicas: ReplicaCluster) -> None:
    """Cut one store off, destroy the volumes of the others soon afterwards, and accept the loss.

    What was acknowledged in between is lost, except for what tier 2 has got.
    """
    loop, stores = cluster.loop, range(cluster.swarm.stores)
    _until(cluster, WHOLE_WITHIN, lambda: all(map(cluster.may_replace, stores)), "a log does not have its copies")
    left = loop.draws.below(cluster.swarm.stores, "which is left")
    others = [number for number in stores if number != left]
    destroyed = replicas.replicas_of(others)
    loop.run_now(partial(replicas.cut, left, None, 2 * SERVED_WITHIN))
    loop.run_until(
        loop.scheduler.now + loop.draws.between(*_LAST_ENTRIES, "last entries"), lambda: _has_failed(cluster)
    )
    for number in others:
        loop.run_now(partial(cluster.replace, number))
    loop.run_now(cluster.heal)
    end = loop.scheduler.now + SERVED_WITHIN
    while loop.scheduler.now < end and not _has_failed(cluster):
        loop.run_until(loop.scheduler.now + _LOOK_AT_LOGS_EVERY, lambda: _has_failed(cluster))
        loop.run_now(partial(cluster.accept_losses, destroyed))
        if cluster.is_served():
            break
    _until(cluster, SERVED_WITHIN, cluster.is_served, "a container is not served after an accepted loss")


def _check_from_tier_two(cluster: StoreCluster) -> None:
    """Stop all stores in order, and start them on empty volumes."""
    for store in cluster.running:
        store.stop()
    cluster.restarts_held = True
    _until(cluster, STOPPED_WITHIN, lambda: not cluster.running, "a store does not stop")
    held = cluster.holds()
    if held:
        raise _ViolatedError(f"containers {held} need a log although all stores have stopped in order")
    cluster.empty_volumes()
    cluster.restarts_held = False
    cluster.loop.run_now(cluster.heal)
    _until(cluster, SERVED_WITHIN, cluster.is_served, "a container is not served from tier 2")


def _check_after_replacing_all(cluster: StoreCluster) -> None:
    """Replace the volumes of all stores, one after the other: the logs must be complete again before the next."""
    for number in range(cluster.swarm.stores):
        replaceable = partial(cluster.may_replace, number)
        _until(cluster, WHOLE_WITHIN, replaceable, f"a log does not have its copies, before the end of store {number},")
        cluster.loop.run_now(partial(cluster.replace, number))
        _until(cluster, SERVED_WITHIN, cluster.is_served, f"a container is not served without store {number}")


def _check_stalled_disk(cluster: StoreCluster) -> None:
    """Let the disk of one store stall, without an error: others take its containers over, while clients go on."""
    number = cluster.loop.draws.below(cluster.swarm.stores, "whose disk stalls")
    whole = partial(cluster.may_replace, number)
    _until(cluster, WHOLE_WITHIN, whole, "a log does not have its copies, before a disk stalls,")
    cluster.loop.run_now(partial(cluster.stall_disk, number, 2 * SERVED_WITHIN))
    without = partial(cluster.is_served_without, number)
    _until(cluster, SERVED_WITHIN, without, f"the disk of store {number} stalls, and it keeps a container")
    cluster.loop.run_now(cluster.heal)
    _until(cluster, SERVED_WITHIN, cluster.is_served, f"a container is not served after the disk of {number} stalled")


def _check_cut_off(cluster: StoreCluster, replicas: ReplicaCluster) -> None:
    """Cut one store off from all others, while containers may move: the others take over what it has or opens."""
    _until(cluster, SERVED_WITHIN, lambda: replicas.are_all_there, "a store does not come back")
    number = cluster.loop.draws.below(cluster.swarm.stores, "which is cut off")
    cluster.loop.run_now(partial(replicas.cut, number, None, 2 * SERVED_WITHIN))
    without = partial(cluster.is_served_without, number)
    _until(cluster, SERVED_WITHIN, without, f"store {number} is cut off, and a container is not served by another one")
    cluster.loop.run_now(cluster.heal)
    _until(cluster, SERVED_WITHIN, cluster.is_served, f"a container is not served after store {number} was cut off")


def _until(cluster: StoreCluster, within: int, is_reached: Callable[[], bool], what: str) -> None:
    start = cluster.loop.scheduler.now
    cluster.loop.run_until(start + within, lambda: _has_failed(cluster) or is_reached())
    _check(cluster)
    if not is_reached():
        raise _ViolatedError(f"{what} {within // SECOND} s later{cluster.openings()}")


def _has_failed(cluster: StoreCluster) -> bool:
    loop = cluster.loop
    return bool(loop.errors or loop.violations) or any(each.violation is not None for each in cluster.clients)


def _check(cluster: StoreCluster) -> None:
    if cluster.loop.violations:
        raise _ViolatedError(cluster.loop.violations[0])
    for client in cluster.clients:
        if client.violation is not None:
            raise _ViolatedError(client.violation)
    if cluster.loop.errors:
        raise _ViolatedError(f"an exception that no code handles: {cluster.loop.errors[0]}")

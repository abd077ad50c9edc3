"""The tape of a run: its workload and its faults as a list of steps, so that steps can be left out."""

from __future__ import annotations

from typing import Final, NamedTuple

from simulation.draws import Draws
from simulation.scheduler import MS, SECOND
from simulation.swarm import SCHEDULED_FAULTS, Swarm

APPEND: Final = "append"
CHECKPOINT: Final = "checkpoint"

_DURATIONS: Final = {
    "pause": (50 * MS, 6 * SECOND),
    "slow disk": (100 * MS, 3 * SECOND),
    "disk full": (200 * MS, 4 * SECOND),
    "metadata outage": (200 * MS, 5 * SECOND),
    "cut pair": (100 * MS, 6 * SECOND),
    "cut direction": (100 * MS, 6 * SECOND),
    "cut store": (100 * MS, 6 * SECOND),
    "swizzle": (100 * MS, 3 * SECOND),
    "new link": (200 * MS, SECOND),
}


class Step(NamedTuple):
    """What happens at a time. `target` and `other` are stores, or a container; `amount` depends on the kind."""

    time: int
    kind: str
    target: int
    other: int
    amount: int


def draw_tape(draws: Draws, swarm: Swarm) -> list[Step]:
    """The steps of a seed, in order of time."""
    steps: list[Step] = []
    for container in range(swarm.containers):
        for time in _times(draws, swarm, swarm.append_every, APPEND, container):
            steps.append(Step(time, APPEND, container, 0, draws.between(1, swarm.payload_max, "size", container)))
        for time in _times(draws, swarm, swarm.checkpoint_every, CHECKPOINT, container):
            steps.append(Step(time, CHECKPOINT, container, 0, draws.between(0, 100, "checkpoint at", container)))
    for actor, kind in enumerate(SCHEDULED_FAULTS):
        rate = swarm.scheduled.get(kind)
        if rate is None:
            continue
        for time in _times(draws, swarm, int(SECOND / rate), kind, actor):
            target, other = draws.below(swarm.stores, "store", actor), draws.below(swarm.stores, "other store", actor)
            low, high = _DURATIONS.get(kind, (0, 1 << 30))
            steps.append(Step(time, kind, target, other, draws.between(low, high, "amount", actor)))
    return sorted(steps)


def _times(draws: Draws, swarm: Swarm, every: int, kind: str, actor: int) -> list[int]:
    times: list[int] = []
    time = 0
    while True:
        time += draws.between(1, 2 * every, f"time of {kind}", actor)
        if time >= swarm.duration:
            return times
        times.append(time)

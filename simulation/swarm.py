"""What a seed's run is like: the cluster's shape, the bounds, and which faults exist at all, at which rates.

Each kind of fault exists with probability one half. Seeds with few kinds go deep where seeds with all kinds cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace.replication.bounds import RecoveryBounds, WriterBounds
from simulation.draws import Draws
from simulation.scheduler import MS, SECOND

PROCESS_FAULTS: Final = ("kill", "power cut", "pause", "replace", "clock jump")
DISK_FAULTS: Final = ("write error", "sync error", "disk full", "slow disk", "rot")
NETWORK_FAULTS: Final = ("cut pair", "cut direction", "cut store", "swizzle")
METADATA_FAULTS: Final = ("metadata outage",)
OWNER_FAULTS: Final = ("takeover", "duel")
FILE_FAULTS: Final = ("create error",)
END_FAULTS: Final = ("congestion", "clean end", "accept loss")
COMMIT_FAULTS: Final = ("kill in a commit",)
LINK_FAULTS: Final = ("reset", "new link")
PLACEMENT_FAULTS: Final = ("placement",)
SCHEDULED_FAULTS: Final = (
    *PROCESS_FAULTS,
    *DISK_FAULTS,
    *NETWORK_FAULTS,
    *METADATA_FAULTS,
    *OWNER_FAULTS,
    *FILE_FAULTS,  # new kinds come last: the tapes of the others stay as they are
    *END_FAULTS,
    *COMMIT_FAULTS,
    *LINK_FAULTS,
    *PLACEMENT_FAULTS,
)
MESSAGE_FAULTS: Final = ("loss", "repeat", "reorder", "heavy tail", "half open")
DROP_FAULTS: Final = ("late drop",)
RECORD_FAULTS: Final = ("record unknown before", "record unknown after", "record late", "record slow", "read unknown")

_RATES_PER_S: Final = (0.1, 0.3, 1.0, 3.0)
_MESSAGE_RATES: Final = (0.002, 0.02, 0.1)
_DROP_RATES: Final = (0.2, 0.8)  # there are few of them
_RECORD_RATES: Final = (0.05, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class Swarm:
    """The settings of one run. Rates are per second for scheduled faults, probabilities for the others."""

    stores: int
    containers: int
    duration: int
    append_every: int
    checkpoint_every: int
    payload_max: int
    sector_bytes: int
    file_bytes: int
    commit_delay: int
    network_delay: int
    scheduled: dict[str, float]
    message: dict[str, float]
    record: dict[str, float]
    writer: WriterBounds
    recovery: RecoveryBounds
    suspicion: int
    through_codec: bool
    garbage_every: int


def draw_swarm(draws: Draws) -> Swarm:
    """The settings of a seed."""

    def rates(kinds: tuple[str, ...], choices: tuple[float, ...]) -> dict[str, float]:
        return {kind: draws.one_of(choices, f"rate {kind}") for kind in kinds if draws.happens(0.5, f"has {kind}")}

    bytes_per_entry = 64
    window = draws.one_of((2, 3, 8, 1000), "window") * bytes_per_entry
    writer = WriterBounds(
        unacknowledged_bytes=draws.one_of((4, 20, 1000), "unacknowledged") * bytes_per_entry,
        link_window_bytes=window,
        catch_up_window_bytes=draws.one_of((1, 3, 100), "catch-up window") * bytes_per_entry,
        lag_bytes=draws.one_of((5, 20, 1000), "lag") * bytes_per_entry,
        join_lag_bytes=draws.one_of((0, 1, 4), "join lag") * bytes_per_entry,
        size_mark_bytes=1,
        stall_ms=draws.one_of((150, 500, 1500), "stall"),
        silence_ms=draws.one_of((100, 300, 1000, 10_000), "silence"),
        pulse_ms=draws.one_of((100, 500), "pulse"),
        record_retry_ms=draws.one_of((20, 200), "record retry"),
        change_patience_ms=draws.one_of((200, 1000, 5000), "patience"),
    )
    recovery = RecoveryBounds(
        fence_grace_ms=draws.one_of((5, 50, 200), "grace"),
        retry_ms=draws.one_of((100, 300, 1000), "recovery retry"),
        copy_window_bytes=draws.one_of((1, 3, 100), "copy window") * bytes_per_entry,
        stall_ms=draws.one_of((300, 1000, 3000), "recovery stall"),
    )
    swarm = Swarm(
        stores=draws.one_of((3, 3, 4, 5), "stores"),
        containers=draws.one_of((1, 1, 2), "containers"),
        duration=draws.between(2, 6, "duration") * SECOND,
        append_every=draws.one_of((15, 40, 120), "append every") * MS,
        checkpoint_every=draws.one_of((200, 1000, 1_000_000), "checkpoint every") * MS,
        payload_max=draws.one_of((20, 90), "payload"),
        sector_bytes=draws.one_of((64, 512), "sector"),
        file_bytes=draws.one_of((5 << 10, 6 << 10, 8 << 10), "file"),
        commit_delay=draws.one_of((300, 2 * MS, 20 * MS), "commit delay"),
        network_delay=draws.one_of((200, MS, 10 * MS), "network delay"),
        scheduled=rates(SCHEDULED_FAULTS, _RATES_PER_S),
        message=rates(MESSAGE_FAULTS, _MESSAGE_RATES) | rates(DROP_FAULTS, _DROP_RATES),
        record=rates(RECORD_FAULTS, _RECORD_RATES),
        writer=writer,
        recovery=recovery,
        suspicion=draws.one_of((50, 300, 2000), "suspicion") * MS,
        through_codec=draws.happens(0.25, "through codec"),
        garbage_every=draws.one_of((400, 2000), "garbage every") * MS,
    )
    match draws.seed % 16:
        case 9:
            return _relinked(swarm)
        case 13:
            return _rearranged(swarm)
    return swarm


def _relinked(swarm: Swarm) -> Swarm:
    """Owners that connect again while a disk is slow, and little else that would hide what comes of it."""
    return replace(
        swarm,
        stores=4,
        containers=1,
        append_every=15 * MS,
        checkpoint_every=SECOND,
        commit_delay=20 * MS,
        network_delay=MS,
        scheduled={"new link": 3.0, "kill": 0.3, "power cut": 0.3},
        message={},
        record={},
    )


def _rearranged(swarm: Swarm) -> Swarm:
    """Members that are replaced again and again, by owners that change, and are told so late."""
    return replace(
        swarm,
        stores=6,
        containers=1,
        duration=8 * SECOND,
        append_every=15 * MS,
        checkpoint_every=200 * MS,
        commit_delay=300,
        network_delay=200,
        scheduled={"placement": 6.0, "takeover": 3.0, "kill": 1.0},
        message={"late drop": 0.9},
        record={},
    )

"""What a seed's run of whole stores is like: its shape, its sizes, and which faults exist at which rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace.model.container_logs import COPIES
from headrace.model.log_classes import ContainerLayout
from headrace.segmentstore.log.objects.log_object_writer import ObjectLogLimits
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from simulation.draws import Draws
from simulation.scheduler import MS, SECOND

STORE_FAULTS: Final = ("kill", "power cut", "pause", "stop in order", "write error", "sync error", "slow disk")
NETWORK_FAULTS: Final = ("reset connections",)
ONE_COPY_FAULTS: Final = ("outage in a hand-over",)
REPLICA_FAULTS: Final = (
    "replace volume",
    "cut store",
    "cut pair",
    "wrong suspicion",
    "slow owner",
    "suspected in a pause",
    "unreadable sector",
)
"""Of runs with three copies only."""

TIER_TWO_FAULTS: Final = ("metadata outage", "chunk outage")
POWER_FAULT: Final = "power cut of all"
"""All stores lose what they have not synced, at the same moment. What two members had on disk is still there."""

_FREE_FAULTS: Final = (*STORE_FAULTS, *NETWORK_FAULTS, *TIER_TWO_FAULTS, *REPLICA_FAULTS, *ONE_COPY_FAULTS)
LATER_FAULTS: Final = ("reset links", "stalled disk")
"""Of runs with three copies. They come last: the draws of the other kinds stay as they are."""

SCHEDULED_FAULTS: Final = (*_FREE_FAULTS, POWER_FAULT, *LATER_FAULTS)
REQUEST_FAULTS: Final = (
    "metadata fails before",
    "metadata fails after",
    "metadata late",
    "metadata slow",
    "chunk fails before",
    "chunk fails after",
    "chunk slow",
)

_RATES_PER_S: Final = (0.05, 0.2, 0.6)
_REQUEST_RATES: Final = (0.005, 0.05, 0.2)


@dataclass(frozen=True, slots=True)
class StoreSwarm:
    """The settings of one run. Times in microseconds, rates per second for `scheduled`, probabilities for `request`."""

    stores: int
    start_every: int
    containers: int
    s3_containers: int
    s3_lane_rate: float
    lanes: int
    table_lanes: int
    duration: int
    network_delay: int
    commit_delay: int
    payload_bytes_max: int
    journal_file_bytes: int
    copy_from_files: int
    cache_bytes: int
    block_bytes: int
    copies: int
    scheduled: dict[str, float]
    request: dict[str, float]
    limits: StorageLimits
    log_limits: ObjectLogLimits
    table_limits: TableLimits
    loses_two: bool = False
    """Whether two of three volumes are destroyed at once, and an operator accepts the loss."""

    @property
    def layout(self) -> ContainerLayout:
        return ContainerLayout(self.containers, self.s3_containers)


def draw_store_swarm(draws: Draws) -> StoreSwarm:
    """The settings of a seed. Every second seed has one copy of each log entry, the others have three."""
    copies = 1 if draws.seed % 2 == 0 else COPIES

    def rates(kinds: tuple[str, ...], choices: tuple[float, ...]) -> dict[str, float]:
        return {kind: draws.one_of(choices, f"rate {kind}") for kind in kinds if draws.happens(0.5, f"has {kind}")}

    # A small one reuses blocks soon, perhaps before the own disk has what two others have.
    cache_bytes = draws.one_of((2 << 20, 64 << 10), "cache") if copies > 1 else 2 << 20
    flush_age_s = draws.one_of((0.1, 0.5, 3.0), "flush age")
    limits = StorageLimits(
        flush_bytes=draws.one_of((2_000, 20_000), "flush bytes"),
        flush_age_s=flush_age_s,
        object_bytes_max=draws.one_of((4_000, 40_000), "object bytes"),
        checkpoint_every_bytes=draws.one_of((8_000, 60_000), "checkpoint bytes"),
        retry_first_s=0.05,
        retry_max_s=1.0,
        tick_s=0.25,
        snapshot_every_s=draws.one_of((0.5, 5.0), "snapshot every"),
        snapshot_soon_s=draws.one_of((0.1, 1.0), "snapshot soon"),
        sweep_every_s=draws.one_of((3.0, 30.0), "sweep every"),
        # Not shorter: a chunk that is being merged or read is protected by its age only.
        object_grace_s=draws.one_of((30.0, 7200.0), "object grace"),
        compacted_runs_min=4,
        idle_segment_s=draws.one_of((0.5, 5.0), "idle segment"),
        idle_segments_kept=1,
        read_cache_bytes=1 << 20,
    )
    table_limits = TableLimits(
        tail_memory_bytes=4_000,
        replay_segment_bytes=8_000,
        index_block_bytes=512,
        index_object_bytes=2_000,
        compaction_segment_bytes=6_000,
        retry_first_s=0.05,
        retry_max_s=1.0,
    )
    swarm = StoreSwarm(
        stores=draws.one_of((3, 3, 4) if copies > 1 else (1, 1, 2, 3), "stores"),
        start_every=SECOND,
        containers=draws.one_of((1, 2, 3), "containers"),
        s3_containers=draws.one_of((1, 2), "S3 containers"),
        s3_lane_rate=0.5,
        lanes=draws.one_of((1, 2), "lanes"),
        table_lanes=draws.one_of((0, 1), "table lanes"),
        duration=draws.between(5, 15, "duration") * SECOND,
        network_delay=draws.one_of((10 * MS, 30 * MS), "network delay"),
        commit_delay=draws.one_of((300, 4 * MS, 40 * MS), "commit delay"),
        payload_bytes_max=draws.one_of((40, 700), "payload"),
        journal_file_bytes=draws.one_of((24 << 10, 64 << 10), "journal file"),
        copy_from_files=draws.one_of((3, 8), "copy from files"),
        cache_bytes=cache_bytes,
        block_bytes=4 << 10 if copies > 1 else 32 << 10,
        copies=copies,
        scheduled=rates((*_FREE_FAULTS, *LATER_FAULTS), _RATES_PER_S),
        request=rates(REQUEST_FAULTS, _REQUEST_RATES),
        limits=limits,
        log_limits=ObjectLogLimits(
            gather_s=draws.one_of((0.0, 0.05, 0.25), "gather"),
            object_bytes=draws.one_of((500, 20_000), "log object bytes"),
            puts_in_flight=draws.one_of((1, 4), "puts in flight"),
            objects_held_max=draws.one_of((5, 1000), "held log objects"),
        ),
        table_limits=table_limits,
    )
    if draws.seed % 16 == 5:
        return _powerless(swarm)
    if draws.seed % 16 == 7:
        return _lossy(swarm, draws)
    if draws.seed % 8 == 1:
        return _pressed(swarm)
    if draws.seed % 8 == 3:
        return _suspected(swarm)
    if draws.seed % 16 == 14:
        return _checkpointed(swarm)
    return _stopping(swarm, draws) if draws.seed % 8 == 2 else swarm


def _suspected(swarm: StoreSwarm) -> StoreSwarm:
    """Owners of logs in S3 that are paused until another store has taken over, and then continue."""
    return replace(
        swarm,
        containers=1,
        s3_containers=1,
        s3_lane_rate=1.0,
        lanes=2,
        duration=15 * SECOND,
        scheduled={"suspected in a pause": 0.6},
    )


def _checkpointed(swarm: StoreSwarm) -> StoreSwarm:
    """A checkpoint behind almost every entry, and stores that are killed while tier 2 lacks only the newest bytes.

    With rare checkpoints the oldest entry that tier 2 lacks is hardly ever the one just before a checkpoint, so a log
    that is truncated one entry too far would not be noticed.
    """
    return replace(
        swarm,
        lanes=2,
        duration=15 * SECOND,
        scheduled={"kill": 0.6},
        request={},
        limits=replace(swarm.limits, flush_age_s=1.0, flush_bytes=20_000, checkpoint_every_bytes=200, tick_s=0.05),
    )


def _lossy(swarm: StoreSwarm, draws: Draws) -> StoreSwarm:
    """Two of three volumes are destroyed while the third one lacks the newest entries, and tier 2 has some of them."""
    return replace(
        swarm,
        stores=COPIES,
        s3_lane_rate=0.0,
        duration=draws.between(2, 6, "lossy duration") * SECOND,
        limits=replace(swarm.limits, flush_age_s=draws.one_of((0.1, 0.3), "lossy flush age")),
        loses_two=True,
    )


def _stopping(swarm: StoreSwarm, draws: Draws) -> StoreSwarm:
    """Stores that stop during hand-overs, openings and outages, and perhaps lose their volumes then."""
    return replace(
        swarm,
        stores=draws.one_of((2, 3), "stopping stores"),
        duration=30 * SECOND,
        scheduled={**swarm.scheduled, "stop in order": 0.6, "outage in a hand-over": 0.6},
        request={**swarm.request, "claim fails after": 0.5},
    )


def _powerless(swarm: StoreSwarm) -> StoreSwarm:
    """Power cuts of all stores. The disks are slower than the network, so much is on its way to them then."""
    return replace(
        swarm,
        lanes=2,
        duration=15 * SECOND,
        network_delay=2 * MS,
        commit_delay=40 * MS,
        scheduled={POWER_FAULT: 0.3},
    )


def _pressed(swarm: StoreSwarm) -> StoreSwarm:
    """More load than the cache holds, while the owner's disk is slow: blocks are wanted before it has their bytes.

    Appends are so large that the log does not copy them: entries read the memory of the cache until it is released.
    """
    return replace(
        swarm,
        stores=COPIES,
        containers=1,
        s3_containers=0,
        start_every=20 * MS,
        lanes=2,
        duration=3 * SECOND,
        network_delay=2 * MS,
        commit_delay=300,
        payload_bytes_max=40_000,
        journal_file_bytes=512 << 10,
        cache_bytes=512 << 10,
        block_bytes=64 << 10,
        scheduled={"slow owner": 1.0},
        request={},
        limits=replace(
            swarm.limits,
            flush_age_s=0.05,
            flush_bytes=20_000,
            object_bytes_max=400_000,
            checkpoint_every_bytes=400_000,
            tick_s=0.05,
        ),
    )

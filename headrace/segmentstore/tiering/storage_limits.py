"""Limits of the work in tier 2, and the throttling of connections before memory or log are full."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.log_room import LogRoom

# Sizes and intervals of the work in tier 2. Objects are few and large; their number depends on bytes and time.


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """`flush_bytes` of a container, or the age of its oldest byte, start a flush; so does a cache that fills up."""

    flush_bytes: int = 16 << 20
    flush_age_s: float = 5.0
    object_bytes_max: int = 32 << 20
    objects_in_flight_max: int = 4
    """Of one container. One connection to S3 carries about 90 MB/s."""
    checkpoint_every_bytes: int = 64 << 20
    retry_first_s: float = 0.1
    retry_max_s: float = 10.0
    tick_s: float = 0.5
    """How often the writer looks whether something is due, when nothing wakes it."""
    snapshot_every_s: float = 30.0
    """Between two snapshots of a container's metadata in tier 2, while anything changes."""
    snapshot_soon_s: float = 1.0
    """From a creation, removal, seal or truncation to the snapshot that contains it. Appends do not count."""
    sweep_every_s: float = 6 * 3600.0
    """Interval of the sweeps for unused objects."""
    object_grace_s: float = 2 * 3600.0
    """Age of an unused object at its deletion: longer than links are valid, and than readers remember a run."""
    compaction_bytes_per_s: int = 8 << 20
    """Of all containers of a process together, for writing small runs again as larger ones; 0: never."""
    compacted_runs_min: int = 32
    """So many small runs of a segment are merged although they do not make a whole chunk."""
    idle_segment_s: float = 600.0
    """A segment that no client has used for so long may be evicted."""
    idle_segments_kept: int = 1_000
    """No segment is evicted while the container has no more than this in memory."""
    read_cache_bytes: int = 64 << 20
    """Of all containers of a process together, for what was read from tier 2 or is on its way from there."""


# Throttles connections before memory or log are full, so that appends continue steadily at the rate of tier 2.
#
# After each piece received from an appending connection, the store pauses reading from it. The pause grows with the
# fill, until clients send as much as tier 2 accepts, and ends when the fill falls. Connections that only read are never
# throttled. A container that uses up its share of the log throttles only the connections that append to it. So does one
# whose appends wait for slow replicas: then clients send as much as those accept.

THROTTLE_FROM_FILL: Final = 0.75
"""Storage writers hurry from half of the cache on: below this they still have a chance to catch up."""

THROTTLE_DELAY_S_MAX: Final = 1.0


def throttle_delay_s(fill: float) -> float:
    """How long to receive nothing, when untiered bytes, held log or waiting entries are at this share of their limit.

    It grows from nothing with the square of what is above `THROTTLE_FROM_FILL`, to `THROTTLE_DELAY_S_MAX` at the limit.
    """
    above = (min(fill, 1.0) - THROTTLE_FROM_FILL) / (1.0 - THROTTLE_FROM_FILL)
    return THROTTLE_DELAY_S_MAX * above * above if above > 0 else 0.0


Appended = Callable[[], Collection[SegmentContainer]]
"""The containers that a connection appends to; none if that is not known."""


class Throttle:
    """Of all connections of a store. `containers` are all that it serves."""

    def __init__(self, pool: BlockPool, room: LogRoom, containers: Appended) -> None:
        self._pool = pool
        self._room = room
        self._containers = containers
        self._calm_bytes = int(THROTTLE_FROM_FILL * pool.capacity_bytes)

    def delay_s(self, now_s: float, appended: Appended) -> float:
        """How long to receive nothing after appends to these containers; 0 as long as tier 2 and replicas keep up."""
        self._room.look(now_s)
        if self._pool.untiered_bytes <= self._calm_bytes and self._room.greatest_fill <= THROTTLE_FROM_FILL:
            return 0.0
        return throttle_delay_s(max(self._pool.untiered_bytes / self._pool.capacity_bytes, self._log_fill(appended)))

    def log_is_full(self, appended: Appended) -> bool:
        """Whether appends to these containers would be refused: wait on."""
        return self._room.greatest_fill >= 1.0 and self._log_fill(appended) >= 1.0

    @property
    def level(self) -> float:
        """The fill that slows some connection down most; none is slowed below `THROTTLE_FROM_FILL`."""
        return max(self._pool.untiered_bytes / self._pool.capacity_bytes, self._room.greatest_fill)

    def _log_fill(self, appended: Appended) -> float:
        containers = appended() or self._containers()
        return max([self._room.fill, *(self._room.fill_of(each.log.ledger) for each in containers)])

"""Sizes and intervals of the work in tier 2. Objects are few and large; their number depends on bytes and time."""

from __future__ import annotations

from dataclasses import dataclass


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

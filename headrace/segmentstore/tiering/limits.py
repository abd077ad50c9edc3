"""When and how much the storage writer writes. Objects are few and large: their number follows bytes and time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """`flush_bytes` of a container, or the age of its oldest byte, start a flush; so does a cache that fills up."""

    flush_bytes: int = 16 << 20
    flush_age_s: float = 5.0
    object_bytes_max: int = 32 << 20
    checkpoint_every_bytes: int = 64 << 20
    retry_first_s: float = 0.1
    retry_max_s: float = 10.0
    tick_s: float = 0.5
    """How often the writer looks whether something is due, when nothing wakes it."""
    snapshot_every_s: float = 30.0
    """Between two snapshots of a container's metadata in tier 2, while anything changes."""
    snapshot_soon_s: float = 1.0
    """From the first change of a segment's life or bounds to the snapshot that has it; appends are no such change."""
    sweep_every_s: float = 6 * 3600.0
    """Between two looks for objects that nobody uses any more."""
    object_grace_s: float = 2 * 3600.0
    """From then on until one is deleted: longer than any link to it lives, and than any reader remembers a run."""
    compaction_bytes_per_s: int = 8 << 20
    """Of all containers of a process together, for writing small runs again as larger ones; 0: never."""
    compacted_runs_min: int = 32
    """So many small runs of a segment are merged although they do not make a whole chunk."""
    idle_segment_s: float = 600.0
    """A segment that nobody has used for so long may leave memory."""
    idle_segments_kept: int = 1_000
    """Of a container: as long as it has no more segments in memory, none leaves."""
    read_cache_bytes: int = 64 << 20
    """Of all containers of a process together, for what was read from tier 2 or is on its way from there."""

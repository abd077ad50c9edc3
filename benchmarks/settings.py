"""How much is measured. Changing a value changes what a figure means, so all of them are written into the results."""

from __future__ import annotations

from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class AppendLoad:
    """One burst: `events` events of `event_bytes` payload, written as fast as they are taken, then flushed."""

    event_bytes: int
    events: int


@dataclass(frozen=True, slots=True)
class PacedLoad:
    """`rate_per_s` events a second of `event_bytes` payload, for `seconds`."""

    rate_per_s: int
    seconds: float
    event_bytes: int = KIB


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. Bursts fit into the segment store's cache, so that they show the log and not tier 2's speed."""

    rounds: int = 3
    segments: int = 2
    routing_keys: int = 1000
    batch_events: int = 2000
    appends: tuple[AppendLoad, ...] = field(
        default=(AppendLoad(100, 500_000), AppendLoad(KIB, 128 * KIB), AppendLoad(10 * KIB, 20_000))
    )
    one_by_one: AppendLoad = field(default=AppendLoad(100, 500_000))
    paced: tuple[PacedLoad, ...] = field(default=(PacedLoad(1_000, 4.0), PacedLoad(10_000, 4.0)))
    crowd: PacedLoad = field(default=PacedLoad(2_000, 4.0))
    crowd_segments: tuple[int, int] = (10, 500)
    company: PacedLoad = field(default=PacedLoad(2_000, 4.0))
    compaction: PacedLoad = field(default=PacedLoad(8_000, 8.0))
    compaction_bytes_per_s: int = 8 * MIB
    compaction_flush_age_s: float = 0.1
    catch_up: AppendLoad = field(default=AppendLoad(KIB, 128 * KIB))
    history_threads: int = 4
    clients: AppendLoad = field(default=AppendLoad(100, 20_000))
    """Of each client. As many as the package of PyPI writes in a few seconds."""
    recovered_bytes: int = 1024 * MIB
    recovered_append_bytes: tuple[int, ...] = (MIB, 16 * KIB)
    raw_seconds: float = 0.5
    raw_block_bytes: tuple[int, ...] = (4 * KIB, 64 * KIB, MIB)
    raw_recycled_bytes: int = 64 * MIB
    cache_bytes: int = 1024 * MIB
    warm_up: AppendLoad = field(default=AppendLoad(KIB, 1280 * KIB))
    """More than the cache holds, so that all its memory and the log's files were written to before."""
    counted_events: tuple[AppendLoad, ...] = field(
        default=(AppendLoad(100, 20_000), AppendLoad(KIB, 8_000), AppendLoad(10 * KIB, 2_000))
    )
    flush_age_s: float = 1.0
    tier2_patience_s: float = 60.0


def store_environment(cache_bytes: int, flush_age_s: float, s3_url: str) -> dict[str, str]:
    """The variables of a measured store whose tier 2 is an S3 double that keeps nothing."""
    return {
        "HEADRACE_CACHE_BYTES": str(cache_bytes),
        "HEADRACE_FLUSH_AGE_S": str(flush_age_s),
        "HEADRACE_COMPACTION_BYTES_PER_S": "0",  # it would read what the double does not keep
        "AWS_ENDPOINT_URL_S3": s3_url,
    }


QUICK = Settings(
    rounds=1,
    appends=(AppendLoad(100, 20_000), AppendLoad(KIB, 5_000), AppendLoad(10 * KIB, 500)),
    one_by_one=AppendLoad(100, 20_000),
    paced=(PacedLoad(1_000, 0.5), PacedLoad(10_000, 0.5)),
    crowd=PacedLoad(1_000, 0.5),
    crowd_segments=(10, 30),
    company=PacedLoad(1_000, 0.5),
    compaction=PacedLoad(2_000, 3.0, 16 * KIB),
    catch_up=AppendLoad(KIB, 5_000),
    warm_up=AppendLoad(KIB, 16 * KIB),
    counted_events=(),
    clients=AppendLoad(100, 1_000),
    recovered_bytes=64 * MIB,
    raw_seconds=0.05,
    raw_recycled_bytes=4 * MIB,
    flush_age_s=0.2,
)
"""Proves that the benchmark runs. Its figures mean nothing."""

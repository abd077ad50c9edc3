"""Limits of the tables: their memory, and the sizes at which they are flushed and compacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLICE_CHANGES_MAX: Final = 500
"""Changes of a batch that are read, checked or entered before other tasks get a turn: a few milliseconds of work."""

SLICE_BYTES_MAX: Final = 1 << 20
"""Bytes of entries after which a slice ends."""

LARGE_BATCHES_AT_ONCE_MAX: Final = 2
"""Batches of more than one slice that a process reads and checks at the same time. It bounds the memory of their keys
and places, which they take in addition to the bytes of their commands."""


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Sizes in bytes. The names say whether they are of memory, of an object, or of a table's segment."""

    tail_memory_bytes: int = 4 << 20
    """Memory of one table's keys that no index has. A tail that takes more than half of it is flushed to the index."""
    replay_segment_bytes: int = 16 << 20
    """The part of a table after the indexed part. The store reads it when it loads the table into memory."""
    all_tails_memory_bytes: int = 32 << 20
    """Memory of all tables of a process. Beyond it the tables that are not in use are evicted."""
    cached_blocks_bytes: int = 16 << 20
    """Cached blocks of index objects, and as much again for cached sparse indexes."""
    index_block_bytes: int = 16 << 10
    index_object_bytes: int = 8 << 20
    compaction_segment_bytes: int = 1 << 20
    """A table is compacted when it takes more than this, and more than twice the bytes of its newest entries."""
    retry_first_s: float = 0.1
    retry_max_s: float = 10.0

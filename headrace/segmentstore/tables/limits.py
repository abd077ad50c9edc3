"""When tables move parts of themselves, and how much memory they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLICE_CHANGES_MAX: Final = 500
"""Changes of one batch that are read, checked or entered before the event loop has a turn: a few milliseconds."""

SLICE_BYTES_MAX: Final = 1 << 20
"""Of the entries that are made at once."""

LARGE_BATCHES_AT_ONCE_MAX: Final = 2
"""Of a process: batches of more than one slice, from their first change that is read until they are in their table. It
bounds what their keys and places take besides the bytes that they came in."""


@dataclass(frozen=True, slots=True)
class TableLimits:
    """All in bytes: of memory, of objects, or of a table's segment, as the names say."""

    tail_memory_bytes: int = 4 << 20
    """Keys of one table that are in memory only; beyond half of it they wait for their way into an index object."""
    replay_segment_bytes: int = 16 << 20
    """What may lie behind the indexed part of a table: it is read when the table comes into memory."""
    all_tails_memory_bytes: int = 32 << 20
    """Of all tables of a process; beyond it those that nobody uses leave memory."""
    cached_blocks_bytes: int = 16 << 20
    """Blocks of index objects that a process remembers, and as much again for the indexes of these blocks."""
    index_block_bytes: int = 16 << 10
    index_object_bytes: int = 8 << 20
    compaction_segment_bytes: int = 1 << 20
    """A table is compacted when it takes more than this, and more than twice what its newest entries take."""
    retry_first_s: float = 0.1
    retry_max_s: float = 10.0

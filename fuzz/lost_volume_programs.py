"""Random programs on segments whose volume is lost again and again: each store starts from tier 2 alone.

Requests and faults are those of `segment_programs`, and `lost_volume_model` says what must be restored. Segments get
the names of removed ones, are flushed, evicted, merged and compacted, and snapshots come early or late.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fuzz.lost_volume_model import LostVolumeModel, StoredLength
from fuzz.memory_store import MemoryWorld, RunningStore
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from fuzz.segment_programs import SegmentProgram, small_sizes, storage_limits
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits

STORES: Final = 6
_STEPS: Final = (20, 80, 200)
_RETRY_S: Final = 0.001


async def run_lost_volume_program(seed: int, trace: Trace, *, stores: int = STORES) -> Counter[str]:
    """Run the program of a seed: so many stores one after the other, each on an empty disk. Counts what happened.

    Raises:
        WrongStateError: a segment is not as it must be, or the store has stopped.
        CorruptError: what tier 2 has contradicts itself.
    """
    random = Random(seed)
    program = _LostVolumeProgram(random, trace)
    with small_sizes(random):
        for _ in range(stores):
            await program.run_store(random.choice(_STEPS))
    return program.model.happened


def _limits(random: Random) -> StorageLimits:
    """Some seeds flush, evict, collect and write snapshots much more often than others."""
    return replace(
        storage_limits(random),
        flush_bytes=random.choice((500, 3_000)),
        idle_segment_s=random.choice((4, 20)),
        sweep_every_s=20,
        object_grace_s=random.choice((30, 30, 100)),
        snapshot_every_s=random.choice((0.1, 5, 30)),
        snapshot_soon_s=random.choice((0.1, 1)),
    )


class _LostVolumeProgram(SegmentProgram):
    model: LostVolumeModel

    def __init__(self, random: Random, trace: Trace) -> None:
        world = MemoryWorld(random, _limits(random), TableLimits())
        super().__init__(random, trace, world, LostVolumeModel(trace))
        world.faults.slow_share = random.choice((0, 0.3))
        self._choices[self._append] = 0.5
        self._choices[self._delete] = 0.03
        self._stored: Mapping[str, StoredLength] | None = None
        """What tier 2 had when the volume was lost. None if no store was lost since the last restoration."""

    async def _end(self, running: RunningStore) -> bool:
        while running.owned is None:
            await self._move(running)
            await asyncio.sleep(_RETRY_S)
        self._trace.note("kill the store, and lose its volume")
        self._stored = self.model.stored_lengths(running.owned.container)
        self._world.lose_volume()
        return True

    async def _check_opened(self, owned: OwnedContainer) -> None:
        if self._stored is None:
            await super()._check_opened(owned)
            return
        await self.model.check_restored(owned, self._stored)
        self._stored = None

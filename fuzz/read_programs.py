"""Random programs on segments that are read over real sessions, with a small cache and small pieces of objects.

Requests and faults are those of `segment_programs`. `reading_peers` send the reads, also to containers that are handed
over, and `read_model` says what the replies must be.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final
from unittest import mock

from fuzz.checker import WrongStateError
from fuzz.memory_store import MemoryWorld, RunningStore
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from fuzz.read_model import ReadModel
from fuzz.reading_peers import ReadingPeer
from fuzz.segment_model import require
from fuzz.segment_programs import STEPS, STORES, TARGETS, SegmentProgram, small_sizes, storage_limits
from headrace.segmentstore.connections import read_processor
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering import chunk_directory, range_cache, storage_reader
from headrace.segmentstore.tiering.storage_limits import StorageLimits

_PEERS_MAX: Final = 3
_PIECES_BYTES: Final = ((64, 256), (1_000, 4_000), (128 << 10, 4 << 20))
_PASSES_MAX: Final = 2_000
_PASS_S: Final = 0.02


async def run_read_program(seed: int, trace: Trace, *, stores: int = STORES, steps: int = STEPS) -> Counter[str]:
    """Run the program of a seed: so many stores one after the other, and so many steps in each. Counts what happened.

    Raises:
        WrongStateError: a reply or a segment is not as it must be, reads do not end, or the store has stopped.
    """
    random = Random(seed)
    program = _ReadProgram(random, trace)
    with small_sizes(random), _small_reads(random):
        for _ in range(stores):
            await program.run_store(steps)
    return program.model.happened


@contextmanager
def _small_reads(random: Random) -> Iterator[None]:
    """Small pieces and pages, few remembered runs, few reads of tier 2 at once: all of it in some seeds."""
    small, large = random.choice(_PIECES_BYTES)
    sizes = (
        (storage_reader, "SMALL_PIECE_BYTES", small),
        (storage_reader, "PIECE_BYTES", large),
        (range_cache, "PIECE_BYTES", large),
        (storage_reader, "LARGE_READ_BYTES_MIN", random.choice((100, 256 << 10))),
        (storage_reader, "REMEMBERED_WINDOWS_MAX", random.choice((2, 256))),
        (read_processor, "STORAGE_READS_MAX", random.choice((1, 8))),
        (read_processor, "READ_AHEADS_MAX", random.choice((1, 16))),
    )
    with ExitStack() as patches:
        for module, name, size in sizes:
            patches.enter_context(mock.patch.object(module, name, size))
        page_defaults = chunk_directory.ChunkDirectory.page.__kwdefaults__
        patches.enter_context(mock.patch.dict(page_defaults, limit=random.choice((1, 2, 64))))
        yield


def _limits(random: Random) -> StorageLimits:
    return replace(
        storage_limits(random),
        read_cache_bytes=random.choice((25_000, 1 << 20)),
        flush_bytes=random.choice((500, 3_000)),
        idle_segment_s=random.choice((4, 20)),
        sweep_every_s=20,
        object_grace_s=random.choice((30, 100)),
    )


class _ReadProgram(SegmentProgram):
    model: ReadModel

    def __init__(self, random: Random, trace: Trace) -> None:
        cache_bytes, block_bytes = random.choice((12 << 10, 24 << 10)), random.choice((512, 1 << 10))
        world = MemoryWorld(random, _limits(random), TableLimits(), cache_bytes=cache_bytes, block_bytes=block_bytes)
        super().__init__(random, trace, world, ReadModel(trace))
        world.faults.slow_share = random.choice((0, 0.3))
        self._choices[self._append] = 0.6
        self._choices[self._delete] = 0.03
        self._peers: list[ReadingPeer] = []

    async def run_store(self, steps: int) -> None:
        self._peers = []
        await super().run_store(steps)

    async def _step(self, running: RunningStore, step: int) -> None:
        random = self._random
        if len(self._peers) < _PEERS_MAX and random.random() < 0.3:
            self._peers.append(ReadingPeer(random, self.model, running.store))
        names = list(self.model.live) if random.random() < 0.9 else []
        for peer in self._peers:
            if random.random() < 0.4:
                peer.ask(names or TARGETS)
        await super()._step(running, step)
        for peer in self._peers:
            peer.check_replies(unblock=random.random() < 0.5)
            if random.random() < 0.01:
                peer.leave()
        self._peers = [peer for peer in self._peers if not peer.closed]

    async def _settle(self, running: RunningStore) -> None:
        """Without faults each read has its reply, and nothing is left of those whose peers have left."""
        await super()._settle(running)
        for _ in range(_PASSES_MAX):
            for peer in self._peers:
                peer.check_replies(unblock=True)
            if not any(peer.waits for peer in self._peers):
                break
            await asyncio.sleep(_PASS_S)
        else:
            raise WrongStateError("reads do not end")
        for peer in self._peers:
            peer.leave()
        await asyncio.sleep(1)
        require("bytes that are requested for", "the read cache", 0, running.store.read_cache.requested_bytes)
        self.model.happened["all reads answered"] += 1

"""The chunk directory of one container's segments: records of the metadata store, written under the container's claim.

Each write is one transaction that also checks the version of the claim, so that a deposed owner changes nothing. The
metadata store blocks; its calls run in threads, never on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_run, chunk_sort
from headrace.model.containers import CLUSTER_PARTITION, claim_sort
from headrace.model.errors import FencedError, UnavailableError
from headrace.ports.metadata_store import (
    WRITES_PER_TRANSACTION_MAX,
    Check,
    Create,
    Delete,
    Key,
    MetadataStore,
    Write,
    WriteConflictError,
)

RUNS_PER_WRITE_MAX: Final = WRITES_PER_TRANSACTION_MAX - 1
MOVES_PER_WRITE_MAX: Final = RUNS_PER_WRITE_MAX // 2
RUNS_PER_PAGE: Final = 64


class ChunkDirectory:
    """`epoch` is the version of the container's claim."""

    def __init__(self, store: MetadataStore, container: int, epoch: int) -> None:
        self._store = store
        self.container = container
        self.epoch = epoch
        self._claim = Check(Key(CLUSTER_PARTITION, claim_sort(container)), version=epoch)

    async def add(self, runs: Sequence[tuple[str, ChunkRun]]) -> dict[int, ChunkRun]:
        """Enter runs of segments, given by name; all or none.

        Returns what was found in the way, by index into `runs`: a run of the same segment at the same offset that an
        earlier attempt left. Nothing was written then.

        Raises:
            FencedError: the container has another owner.
            UnavailableError: the store does not answer; the runs may or may not be there.
        """
        writes = [Create(_run_key(name, run.offset), chunk_body(run)) for name, run in runs]
        try:
            await self._write(writes)
        except WriteConflictError as error:
            return _found_runs(error)
        return {}

    async def move(self, source: str, target: str, shift: int, runs: Sequence[ChunkRun]) -> dict[int, ChunkRun]:
        """Make runs of `source` runs of `target`, `shift` bytes further; returns and raises as `add`."""
        writes: list[Write] = [
            Create(
                _run_key(target, run.offset + shift),
                chunk_body(ChunkRun(run.offset + shift, run.length, run.object_name, run.position)),
            )
            for run in runs
        ]
        writes.extend(Delete(_run_key(source, run.offset), version=None) for run in runs)
        try:
            await self._write(writes)
        except WriteConflictError as error:
            return _found_runs(error)
        return {}

    async def remove(self, name: str, runs: Sequence[ChunkRun]) -> None:
        """Forget runs of a segment; raises as `add`."""
        await self._write([Delete(_run_key(name, run.offset), version=None) for run in runs])

    async def page(self, name: str, *, first: int = 0, limit: int = RUNS_PER_PAGE) -> list[ChunkRun]:
        """Runs of a segment that start at `first` or behind, in order."""
        page = await asyncio.to_thread(
            self._store.query, chunk_partition(name), first=chunk_sort(first), last=chunk_sort(_LAST), limit=limit
        )
        return [chunk_run(record.key.sort, record.body) for record in page.records]

    async def run_before(self, name: str, offset: int) -> ChunkRun | None:
        """The last run of a segment that starts at `offset` or before."""
        page = await asyncio.to_thread(
            self._store.query,
            chunk_partition(name),
            first=chunk_sort(0),
            last=chunk_sort(offset),
            limit=1,
            descending=True,
        )
        return next((chunk_run(record.key.sort, record.body) for record in page.records), None)

    async def last_run(self, name: str) -> ChunkRun | None:
        """The run that ends a segment; None if the directory has nothing of it."""
        return await self.run_before(name, _LAST)

    async def _write(self, writes: Sequence[Write]) -> None:
        try:
            await asyncio.to_thread(self._store.write, self._claim, *writes)
        except WriteConflictError as error:
            if 0 in error.failed:
                raise FencedError(
                    f"container {self.container} has another owner than the one of epoch {self.epoch}"
                ) from error
            raise


_LAST: Final = 10**19  # behind every offset, with as many digits


def _run_key(name: str, offset: int) -> Key:
    return Key(chunk_partition(name), chunk_sort(offset))


def _found_runs(error: WriteConflictError) -> dict[int, ChunkRun]:
    """What was in the way, by index of the write behind the check of the claim."""
    found = {
        index - 1: chunk_run(record.key.sort, record.body)
        for index, record in error.failed.items()
        if record is not None
    }
    if not found:
        raise UnavailableError("the metadata store refused runs without saying what is in their place") from error
    return found

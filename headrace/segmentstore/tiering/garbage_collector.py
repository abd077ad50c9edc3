"""Deletes packed objects of one container that are not used any more.

A slow sweep compares the counts of the container's objects with the listing of chunk storage. It deletes objects whose
last run was removed, and orphans, whose runs were never entered: a crash between the PUT and the write of the directory
leaves an orphan. Both are kept for a grace period, because links of the history service and runs that readers remember
may still refer to them. The sweep considers only names of packed objects. It does not touch snapshots and table
indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from headrace.model.chunks import object_count, packed_prefix
from headrace.ports.chunk_storage import ChunkStorage, StoredObject
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Record
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.owner_writes import ObjectNames
from headrace.segmentstore.tiering.storage_limits import StorageLimits

_log = logging.getLogger(__name__)

OBJECTS_PER_PAGE: Final = 1000


class GarbageCollector:
    """Sweeps the objects of one container; each pass handles one page of the sweep that is due."""

    def __init__(
        self,
        directory: ChunkDirectory,
        chunk_storage: ChunkStorage,
        names: ObjectNames,
        clock: Clock,
        limits: StorageLimits,
    ) -> None:
        self._directory = directory
        self._chunk_storage = chunk_storage
        self._names = names
        self._clock = clock
        self._limits = limits
        self._prefix = packed_prefix(directory.container)
        self._after = ""
        self._due_s = clock.monotonic_s() + limits.sweep_every_s

    async def run_pass(self) -> bool:
        """Sweep one page if a sweep is due. Returns whether it has more pages.

        Raises:
            ThrottledError, UnavailableError: tier 2 does not answer; the next pass repeats the page.
            FencedError: the container has another owner.
        """
        if self._clock.monotonic_s() < self._due_s:
            return False
        counted = await self._directory.objects(after=self._after, limit=OBJECTS_PER_PAGE)
        stored = await self._chunk_storage.list(self._prefix, after=self._after, limit=OBJECTS_PER_PAGE)
        ends = [stored[-1].name] if len(stored) == OBJECTS_PER_PAGE else []
        ends += [counted.next_after] if counted.next_after is not None else []
        end = min(ends, default=None)
        records = [each for each in counted.records if end is None or each.key.sort <= end]
        objects = {each.name: each for each in stored if end is None or each.name <= end}
        self._report_foreign_changes(records, objects)
        empty = [record for record in records if self._is_empty(record)]
        names = {record.key.sort for record in records}
        orphans = [name for name in objects if name not in names and await self._is_orphan(objects[name])]
        await self._delete(empty, orphans)
        self._after = end or ""
        if end is None:
            self._due_s = self._clock.monotonic_s() + self._limits.sweep_every_s
        return end is not None

    async def _delete(self, empty: Sequence[Record], orphans: Sequence[str]) -> None:
        names = [record.key.sort for record in empty] + list(orphans)
        if not names:
            return
        await self._chunk_storage.delete(names)
        await self._directory.forget_objects(empty)  # last: after a crash before it the next sweep repeats everything
        _log.info(
            "event=garbage_collected container=%d emptied=%d orphans=%d",
            self._directory.container,
            len(empty),
            len(orphans),
        )

    def _is_empty(self, record: Record) -> bool:
        emptied_at_ms = object_count(record.body).emptied_at_ms
        return (
            emptied_at_ms is not None
            and self._is_old(emptied_at_ms)
            and not self._names.may_be_entered(record.key.sort)
        )

    async def _is_orphan(self, stored: StoredObject) -> bool:
        if self._names.may_be_entered(stored.name) or not self._is_old(stored.last_modified_ms):
            return False
        return await self._directory.count_of(stored.name) is None  # else it was entered since the counts were read

    def _is_old(self, since_ms: int) -> bool:
        return self._clock.now_ms() - since_ms >= self._limits.object_grace_s * 1000

    def _report_foreign_changes(self, records: Sequence[Record], objects: dict[str, StoredObject]) -> None:
        """Log objects that are missing or cut, so that an operator can restore them before reads fail."""
        for record in records:
            count, stored = object_count(record.body), objects.get(record.key.sort)
            if count.runs and (stored is None or stored.length != count.length):
                _log.critical(
                    "event=foreign_change container=%d object=%s length=%d found_length=%d runs=%d",
                    self._directory.container,
                    record.key.sort,
                    count.length,
                    -1 if stored is None else stored.length,
                    count.runs,
                )

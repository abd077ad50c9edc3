"""The tick that removes orphaned segments, which were created too late to be removed by any later operation.

A process may stall before it creates segments, while their stream is deleted. If it then crashes after the creation, it
cannot check whether the segments are still wanted. So it notes the segments before it creates them
(`steps/stream_segments.py`). This tick reads the note when the process must have ended. It deletes those of the
segments that belong to no stream, and then the note.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.controller.engine import Tools
from headrace.controller.steps.stream_segments import delete_unwanted
from headrace.controller.ticks.due_work import DuePage, DueWork, DueWorkTicks, NoteUndecodable
from headrace.metadata.due_index import move_back
from headrace.metadata.orphan_segments import Creation, read_due_creations
from headrace.model.backoff import BACKOFF_MAX_MS
from headrace.model.errors import HeadraceError
from headrace.ports.metadata_store import Delete, Record
from headrace.ports.workers import Workers

TICK = "creations"
_RECORDS_PER_READ = 200
_CREATION_S_MAX = 15.0
"""The time limit of one note: more than a thousand segments may have to be deleted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredCreation:
    """A note of planned segments with its record."""

    creation: Creation
    record: Record


def creation_ticks(
    tools: Tools, workers: Workers | None = None, note_undecodable: NoteUndecodable | None = None
) -> DueWorkTicks[StoredCreation]:
    """Ticks that check the notes that are an hour old.

    A note costs two reads and a write. Segment stores are called only to delete unwanted segments, existing or not.
    """
    store = tools.records.store

    def read(shard: int, after: str) -> DuePage[StoredCreation]:
        page = read_due_creations(store, shard, tools.clock.now_ms(), after, _RECORDS_PER_READ)
        due = [(record.key.sort, StoredCreation(creation, record)) for record, creation in page.entries]
        return DuePage(due, page.next_after, page.undecodable)

    def work_on(stored: StoredCreation) -> None:
        delete_unwanted(tools, stored.creation)
        store.write(Delete(stored.record.key, stored.record.version))

    def put_off(stored: StoredCreation, error: HeadraceError) -> None:
        creation = stored.creation
        _log.warning("cannot check the created segments of %s/%s now: %s", creation.scope, creation.stream, error)
        store.write(*move_back(stored.record, tools.clock.now_ms() + BACKOFF_MAX_MS))

    due_work = DueWork(TICK, read, work_on, put_off, entry_s_max=_CREATION_S_MAX)
    return DueWorkTicks(store, tools.clock, due_work, workers, note_undecodable)

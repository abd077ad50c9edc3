"""Gives up a scale that cannot get going, so that its stream is usable again: what an operator does with a dead letter.

Only a scale whose epoch is not on record yet can be given up, for then nothing irrevocable has happened. Segments that
it may have created stay behind, empty: the next scale has the same numbers and takes them over. To remove them here
would be wrong, since a processor that is late could put the epoch on record at the same moment.

Create, seal and delete are never given up: each of their steps can be repeated for ever, and the sweeper does.
"""

from __future__ import annotations

from headrace.metadata import keys
from headrace.metadata.stream_records import StreamRecords, delete_intent
from headrace.model.streams import scaling_abandoned
from headrace.ports.metadata_store import Delete, MetadataStore


def abandon_request(store: MetadataStore, scope: str, stream: str) -> None:
    """Roll the scale that runs on a stream back to ACTIVE.

    Raises:
        NotFoundError: there is no such stream.
        IllegalStateError: no scale runs, or its epoch is on record: it must complete.
        WriteConflictError: the workflow was faster; look again.
    """
    records = StreamRecords(store)
    stored = records.get(scope, stream)
    records.replace(
        stored,
        scaling_abandoned(stored.stream),
        Delete(keys.transition_key(scope, stream), None),
        delete_intent(stored.stream),
    )

"""Gives up a scale that cannot get going, so that its stream is usable again: the end of a dead letter.

Only a scale whose epoch is not on record yet can be given up, for then nothing irrevocable has happened. Segments that
it may have created stay behind, empty: the next scale has the same numbers and takes them over. To remove them here
would be wrong, since a processor that is late could put the epoch on record at the same moment.

Create, seal and delete are never given up: each of their steps can be repeated for ever, and the sweeper does.
"""

from __future__ import annotations

from headrace.metadata import keys
from headrace.metadata.stream_records import StreamRecords, delete_intent
from headrace.model.errors import IllegalStateError
from headrace.model.streams import PendingRequest, scaling_abandoned
from headrace.ports.metadata_store import Delete, MetadataStore


def abandon_request(store: MetadataStore, scope: str, stream: str, request: PendingRequest) -> None:
    """Roll the stream back to ACTIVE from the scale that `request` asked for.

    Raises:
        NotFoundError: there is no such stream.
        IllegalStateError: `request` does not run (any more), is no scale, or its epoch is on record: it must complete.
        WriteConflictError: the workflow was faster; look again.
    """
    records = StreamRecords(store)
    stored = records.get(scope, stream)
    if not stored.stream.is_pending(request):
        raise IllegalStateError(f"{request.request_id} does not run on {stored.stream.scoped_name}")
    records.replace(
        stored,
        scaling_abandoned(stored.stream),
        Delete(keys.transition_key(scope, stream), None),
        delete_intent(stored.stream),
    )

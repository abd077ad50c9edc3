"""Gives up a request that cannot get going, so that its stream is usable again: the end of a dead letter.

A scale can be given up while its epoch is not on record yet, for then nothing irrevocable has happened. Segments that
it may have created stay behind, empty, and are noted: the next scale removes them (leftovers.py). An epoch that changes
nothing uses up its number, so that the scale is never taken for a later one.

An update can be given up while its configuration is not in force, a truncation while its cut is not on record. Segments
that have learned the rate of such an update keep it until they learn another.

Requests of other kinds are never given up: each of their steps can be repeated for ever, and the sweeper does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.codec.records.stream_record import configuration_fields
from headrace.controller.steps.leftovers import note_leftovers
from headrace.metadata import keys
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream_indexes import unindex_tags
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.model.errors import ConflictError, IllegalStateError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.streams import Stream, scale_rolled_back, truncation_rolled_back, update_rolled_back
from headrace.ports.metadata_store import Delete, Write


@dataclass(frozen=True, slots=True)
class Undo:
    """The stream without the request, what else is written with it, and what the request asked for, as JSON values.

    `added_tags` were on their way into the index: more than one write may hold, so they go out of it before.
    """

    after: Stream
    writes: tuple[Write, ...]
    parameters: Mapping[str, Any]
    added_tags: tuple[str, ...] = ()


def undo_request(records: StreamRecords, stored: StoredStream, request: PendingRequest) -> Undo:
    """How `request`, which runs on the stream as read, would be taken back; nothing is written.

    Raises:
        IllegalStateError: `request` does not run (any more), or it has passed the point of no return: it must complete.
        ConflictError: it has just ended; look again.
    """
    stream = stored.stream
    if stream.is_following(request):
        raise IllegalStateError(f"{request.request_id} waits for a batch of commits on {stream.scoped_name}")
    if not stream.is_pending(request):
        raise IllegalStateError(f"{request.request_id} does not run on {stream.scoped_name}")
    undo = _UNDO.get(request.kind)
    if undo is None:
        raise IllegalStateError(f"a {request.kind} request is never given up: replay it when its cause is mended")
    return undo(records, stream)


def write_undo(records: StreamRecords, stored: StoredStream, undo: Undo, *others: Write) -> None:
    """Take the request back, all or nothing with `others`; raises WriteConflictError if the workflow was faster.

    A processor that is late may index a tag again in between: the index only says which streams may have a tag.
    """
    unindex_tags(records, stored, undo.added_tags)
    records.replace(stored, undo.after, *undo.writes, delete_intent(stored.stream), *others)


def _undo_scale(records: StreamRecords, stream: Stream) -> Undo:
    planned = records.transition(stream)
    if planned is None:
        raise ConflictError(f"the scale of {stream.scoped_name} has just ended")
    after = scale_rolled_back(stream, planned)
    parameters = {
        "sealedSegments": [one.segment_id for one in planned.replaced],
        "newRanges": [[one.key_range.low, one.key_range.high] for one in planned.created],
    }
    writes = (
        Delete(keys.transition_key(stream.scope, stream.name), None),
        note_leftovers(records, stream, planned),
        *create_epoch(stream, after.epoch),
    )
    return Undo(after, writes, parameters)


def _undo_update(records: StreamRecords, stream: Stream) -> Undo:
    update = records.configuration_update(stream)
    if update is None:
        raise ConflictError(f"the update of {stream.scoped_name} has just ended")
    after = update_rolled_back(stream, update)
    parameters = {"configuration": configuration_fields(update.after)}
    gone = Delete(keys.configuration_update_key(stream.scope, stream.name), None)
    return Undo(after, (gone,), parameters, update.added_tags)


def _undo_truncation(records: StreamRecords, stream: Stream) -> Undo:
    found = records.running_truncation(stream)
    if found is None:
        raise ConflictError(f"the truncation of {stream.scoped_name} has just ended")
    running, version = found
    after = truncation_rolled_back(stream, running)
    cut = {str(identifier): offset for identifier, offset in running.target.cut.positions}
    # Under its version: the cut goes on record without a change of the stream's current record.
    gone = Delete(keys.running_truncation_key(stream.scope, stream.name), version)
    return Undo(after, (gone,), {"cut": cut})


_UNDO: Mapping[RequestKind, Callable[[StreamRecords, Stream], Undo]] = {
    RequestKind.SCALE_STREAM: _undo_scale,
    RequestKind.UPDATE_STREAM: _undo_update,
    RequestKind.TRUNCATE_STREAM: _undo_truncation,
}
"""How a request of each kind is undone, and what to ask for to have it again; what is not here must complete."""

"""Scale a stream: create the new segments, put the new epoch on record, seal the old segments, go over to the epoch."""

from __future__ import annotations

from headrace.controller.steps.next_epoch import (
    STEPS_ON_RECORD,
    create_new_segments,
    is_recorded,
    planned_epoch,
    record_epoch,
)
from headrace.controller.workflow import Step, Tools, Workflow
from headrace.metadata import keys
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.requests import RequestKind
from headrace.model.streams import Stream, scaled
from headrace.ports.metadata_store import Delete


def _is_planned(stream: Stream) -> bool:
    return not is_recorded(stream)


def _create_segments(tools: Tools, stored: StoredStream) -> StoredStream | None:
    return create_new_segments(tools, stored, planned_epoch(tools, stored))


def _record_epoch(tools: Tools, stored: StoredStream) -> None:
    record_epoch(tools, stored, planned_epoch(tools, stored))


def _activate_epoch(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        scaled(stream, planned_epoch(tools, stored)),
        Delete(keys.transition_key(stream.scope, stream.name), None),
        delete_intent(stream),
    )


SCALE_STREAM = Workflow(
    RequestKind.SCALE_STREAM,
    (
        Step("create segments", _create_segments, applies=_is_planned),
        Step("record the epoch", _record_epoch, applies=_is_planned),
        *STEPS_ON_RECORD,
        Step("activate the epoch", _activate_epoch, applies=is_recorded),
    ),
)

"""Scale a stream: create the new segments, record the new epoch, seal the old segments, activate the epoch.

A scale can be rolled back until its epoch is recorded, because nothing irrevocable has happened before. Segments that
it may have created remain, empty, and are noted: the next scale removes them (`steps/stream_segments.py`). An epoch
that changes nothing uses up the number, so that a later scale cannot be confused with this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.streams import ScaleProgress, ScaleStatus
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import Operation, Rollback, Step, Submit, Tools, Undo
from headrace.controller.steps.resources import STREAM, find_running, undo_on_stream
from headrace.controller.steps.stream_segments import (
    STEPS_AFTER_RECORDING,
    create_new_segments,
    is_recorded,
    note_leftovers,
    planned_epoch,
    record_epoch,
)
from headrace.metadata.commit_records import check_commit_does_not_roll
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream import create_transition, delete_transition
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.model.epochs import Epoch, is_same_scale, scaled_epoch
from headrace.model.errors import ConflictError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.scaling import check_segments_left, replacement_plan
from headrace.model.segments import KeyRange
from headrace.model.streams import Stream, scale_rolled_back, scaled, started
from headrace.ports.metadata_store import MetadataStore


def accept(
    acceptance: Acceptance, scope: str, stream: str, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
) -> ScaleProgress:
    """Accept a scale; raises as `StreamService.scale_stream` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, stream, sealed_segment_ids, new_ranges))


def accept_unchanged(
    acceptance: Acceptance, stored: StoredStream, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
) -> ScaleProgress:
    """Accept a scale that was decided on the stream as it was read in `stored`.

    Raises:
        WriteConflictError: the stream has changed since; read it and decide again.
        The other errors of `accept`, except for NotFoundError.
    """
    scaling, epoch = _planned(acceptance, stored, sealed_segment_ids, new_ranges)
    check_segments_left(epoch, stored.stream.configuration.scaling)
    acceptance.change_stream(stored, scaling, create_transition(scaling, epoch))
    return ScaleProgress.of(epoch, ScaleStatus.IN_PROGRESS)


def accept_replacement(acceptance: Acceptance, stored: StoredStream, segment_id: int) -> None:
    """Accept a scale of one active segment to one of the same range, as `accept_unchanged`.

    The number of segments stays, so it is not compared with the minimum of the policy.
    """
    plan = replacement_plan(stored.stream.epoch, segment_id)
    scaling, epoch = _planned(acceptance, stored, plan.sealed, plan.new_ranges)
    acceptance.change_stream(stored, scaling, create_transition(scaling, epoch))


def _planned(
    acceptance: Acceptance, stored: StoredStream, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
) -> tuple[Stream, Epoch]:
    """The stream with the scale, and the epoch that it leads to."""
    scaling = started(stored.stream, stored.version, RequestKind.SCALE_STREAM)
    check_commit_does_not_roll(acceptance.store, stored.stream)
    return scaling, scaled_epoch(stored.stream.epoch, sealed_segment_ids, new_ranges, acceptance.clock.now_ms())


def _accept(
    acceptance: Acceptance, scope: str, name: str, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
) -> ScaleProgress:
    stored = acceptance.streams.get(scope, name)
    if stored.stream.has_accepted(RequestKind.SCALE_STREAM):
        planned = acceptance.streams.transition(stored.stream)
        if planned is None:
            raise ConflictError(f"the scale of {stored.stream.scoped_name} has just ended: repeat the request")
        if is_same_scale(planned, sealed_segment_ids, new_ranges):
            return ScaleProgress.of(planned, ScaleStatus.IN_PROGRESS)
    done = _done_scale(acceptance.streams, stored.stream, sealed_segment_ids, new_ranges)
    if done is not None:
        return ScaleProgress.of(done, ScaleStatus.SUCCESS)
    return accept_unchanged(acceptance, stored, sealed_segment_ids, new_ranges)


def _done_scale(
    records: StreamRecords, stream: Stream, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
) -> Epoch | None:
    """The epoch to which exactly this scale has led. It is searched only if one of the segments is not active."""
    ended = next((each for each in sealed_segment_ids if each not in stream.epoch.by_id), None)
    if ended is None:
        return None
    if is_same_scale(stream.epoch, sealed_segment_ids, new_ranges):
        return stream.epoch
    sealed = records.history.sealed_segments(stream, [ended]).get(ended)
    if sealed is None or sealed.replaced_in is None or sealed.replaced_in > stream.epoch.number:
        return None
    epoch = records.history.epoch(stream, sealed.replaced_in)
    return epoch if is_same_scale(epoch, sealed_segment_ids, new_ranges) else None


def _is_planned(stored: StoredStream) -> bool:
    return not is_recorded(stored)


def _create_segments(tools: Tools, stored: StoredStream) -> StoredStream | None:
    return create_new_segments(tools, stored, planned_epoch(tools, stored))


def _record_epoch(tools: Tools, stored: StoredStream) -> None:
    record_epoch(tools, stored, planned_epoch(tools, stored))


def _activate_epoch(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        scaled(stream, planned_epoch(tools, stored)),
        delete_transition(stream),
        delete_intent(stream),
    )


def _undo(store: MetadataStore, scope: str, name: str, request: PendingRequest) -> Undo:
    records = StreamRecords(store)
    stored = find_running(records, scope, name, request)
    stream, planned = stored.stream, records.transition(stored.stream)
    if planned is None:
        raise ConflictError(f"the scale of {stream.scoped_name} has just ended")
    after = scale_rolled_back(stream, planned)
    return undo_on_stream(
        records,
        stored,
        after,
        delete_transition(stream),
        note_leftovers(records, stream, planned),
        *create_epoch(stream, after.epoch),
        parameters={
            "sealedSegments": [segment.segment_id for segment in planned.replaced],
            "newRanges": [[segment.key_range.low, segment.key_range.high] for segment in planned.created],
        },
    )


def _replay(parameters: Mapping[str, Any]) -> Submit:
    ranges = [KeyRange(low, high) for low, high in parameters["newRanges"]]
    sealed = [int(identifier) for identifier in parameters["sealedSegments"]]
    return lambda acceptance, scope, stream: accept(acceptance, scope, stream, sealed, ranges)


SCALE_STREAM = Operation(
    RequestKind.SCALE_STREAM,
    STREAM,
    (
        Step("create segments", _create_segments, applies=_is_planned),
        Step("record the epoch", _record_epoch, applies=_is_planned),
        *STEPS_AFTER_RECORDING,
        Step("activate the epoch", _activate_epoch, applies=is_recorded),
    ),
    Rollback(_undo, _replay),
)

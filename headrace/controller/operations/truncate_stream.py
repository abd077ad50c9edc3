"""Truncate a stream: count the bytes, record the new head, truncate the segments in the cut, delete those before it.

The head is recorded before a segment is deleted: a reader that finds a segment missing queries the head, and must not
get the old one. Only segments between the old head and the new one are counted and deleted. So the cost of a truncation
depends on the bytes that it removes, and not on the history of the stream. A long truncation records its progress.

The mark segment is truncated with its stream: no reader needs a watermark whose cut is before the head. The newest
watermark that the head has reached stays, as the lower bound of the time of the first events. The newest watermark of
all always stays, because Pravega's clients begin to read there.

A truncation can be rolled back until its head is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.api.streams import StreamView
from headrace.codec.events import iter_events
from headrace.codec.stored_objects import watermark_of_payload
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import Operation, Rollback, Step, Submit, Tools, Undo
from headrace.controller.steps.resources import STREAM, find_running, undo_on_stream
from headrace.metadata.commit_records import check_commit_does_not_roll
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.metadata.truncation import (
    create_running_truncation,
    delete_running_truncation,
    replace_running_truncation,
    write_truncation,
)
from headrace.metadata.watermark_records import read_watermark_state, up_to_incarnation, watermark_key
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError, NotFoundError, UnavailableError
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.names import mark_segment_name, segment_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.streams import Stream, completed, started, truncation_rolled_back
from headrace.model.truncation import (
    RunningTruncation,
    bytes_cut_off,
    bytes_that_go,
    is_very_beginning,
    running_truncation,
    segments_that_go,
)
from headrace.model.watermarks import is_at_or_behind
from headrace.model.writer_marks import Positions, positions_of
from headrace.ports.clock import is_time_short, require_time_for_piece
from headrace.ports.metadata_store import Check, MetadataStore, Write
from headrace.ports.segment_stores import SegmentStores
from headrace.wire.fields import WireFormatError

MARK_BYTES_PER_READ = 1024 * 1024
"""Larger than the watermark of a stream with the most segments."""

MARK_READS_PER_TRUNCATION = 16
"""Half an hour of watermarks is a few hundred KB. Later truncations of the stream remove the rest."""

_log = logging.getLogger(__name__)


def truncate_marks(store: MetadataStore, segment_stores: SegmentStores, stream: Stream, head: PlacedCut) -> None:
    """One read of metadata; if the stream has watermarks, at least two requests to the owner of its mark segment.

    May be repeated. If the mark segment is not available, or contains other data than watermarks, it stays unchanged:
    the next truncation tries again, and the stream does not wait for it. The mark segment of a later incarnation stays
    unchanged, too.
    """
    state = read_watermark_state(store.get(watermark_key(stream.scope, stream.name)), stream).state
    if state.last is None:
        return
    name = mark_segment_name(stream.scope, stream.name)
    offsets = head.cut.offsets
    position = positions_of({segment: offsets[segment.segment_id] for segment in head.segments})
    try:
        start = segment_stores.segment_info(name).start_offset
        first_kept = _newest_reached(segment_stores, name, start, state.last_offset, position)
        if first_kept > start:
            segment_stores.truncate_segment_up_to(name, first_kept, up_to_incarnation(stream))
    except NotFoundError:
        return
    except (UnavailableError, WireFormatError, CorruptError) as error:
        _log.warning("the mark segment of %s is not truncated now: %s", stream.scoped_name, error)


def _newest_reached(segment_stores: SegmentStores, name: str, start: int, last: int, position: Positions) -> int:
    """The offset of the newest watermark from `start` on that `position` has reached, or `start`; at most `last`."""
    reached = offset = start
    for _ in range(MARK_READS_PER_TRUNCATION):
        data = segment_stores.read(name, offset, MARK_BYTES_PER_READ)
        payloads, consumed = iter_events(data)
        for payload in payloads:
            if offset > last or not is_at_or_behind(position, watermark_of_payload(payload).cut):
                return reached
            reached = offset
            offset += EVENT_HEADER_BYTES + len(payload)
        if not consumed:
            return reached
    return reached


SEGMENTS_PER_CALL = 1_000
EPOCHS_PER_PIECE = 1_000
"""After so many epochs a long truncation records its progress."""


def accept(
    acceptance: Acceptance, scope: str, stream: str, offsets: Mapping[int, int], planned_on: Check | None = None
) -> StreamView:
    """Accept a truncation; raises as `StreamService.truncate_stream` does.

    An offset of -1 truncates a sealed segment at its end. Since the target has the length instead, a repeat is known.
    Retention passes `planned_on`, a record that must not have changed since it decided on the truncation.
    """
    cut = StreamCut.of(scope, stream, offsets)
    conditions = [] if planned_on is None else [planned_on]
    return acceptance.repeat(lambda: _accept(acceptance, cut, conditions))


def _accept(acceptance: Acceptance, wanted: StreamCut, conditions: Sequence[Check]) -> StreamView:
    stored, truncation = acceptance.streams.get_with_truncation(wanted.scope, wanted.stream)
    stream = stored.stream
    cut = acceptance.cuts.resolved(stream, wanted.offsets)
    if stream.has_accepted(RequestKind.TRUNCATE_STREAM):
        pending = acceptance.streams.running_truncation(stream)
        if pending is None:
            raise ConflictError(f"the truncation of {stream.scoped_name} has just ended: repeat the request")
        if pending[0].target.cut == cut:
            return StreamView.of(stream)
    truncating = started(stream, stored.version, RequestKind.TRUNCATE_STREAM)
    if truncation is not None and truncation.cut == cut:
        return StreamView.of(stream)
    placed = acceptance.cuts.check(stream, cut)
    acceptance.cuts.check_left(stream, cut, truncation)
    if truncation is None and is_very_beginning(cut):
        return StreamView.of(stream)
    check_commit_does_not_roll(acceptance.store, stream)
    first_epoch = acceptance.cuts.first_epoch(stream, cut)
    running = running_truncation(placed, first_epoch, truncation, by_retention=bool(conditions))
    acceptance.change_stream(stored, truncating, create_running_truncation(truncating, running), *conditions)
    return StreamView.of(truncating)


def _record_head(tools: Tools, stored: StoredStream) -> None:
    """Nothing irrevocable happens before this step is complete: until then a truncation can be rolled back."""
    running, version = _running(tools, stored)
    if running.is_recorded:
        return
    _check_reached(tools, stored.stream, running)
    while True:
        numbers = _piece(running)
        gone = _replaced_in(tools, stored.stream, running, numbers)
        size = running.size_bytes + bytes_that_go(running, _lengths(tools, stored.stream, gone))
        running = replace(running, next_epoch=numbers.stop, size_bytes=size)
        if running.next_epoch >= running.epochs.stop:
            break
        version = _note(tools, stored, running, version)
        require_time_for_piece(f"truncation of {stored.stream.scoped_name}, counted up to epoch {running.next_epoch}")
    before = running.before.size_bytes if running.before else 0
    counted = replace(
        running,
        size_bytes=before + running.size_bytes + bytes_cut_off(running),
        next_epoch=running.epochs.start,
        is_recorded=True,
    )
    _note(tools, stored, counted, version, write_truncation(tools.records.store, stored.stream, counted.truncation))


def _truncate_segments(tools: Tools, stored: StoredStream) -> None:
    running, version = _running(tools, stored)
    if running.next_epoch > running.epochs.start:
        return  # The deletion of segments has begun, which follows this step.
    starts = running.before.cut.offsets if running.before else {}
    positions = running.target.cut.positions
    for index in range(running.positions_done, len(positions)):
        identifier, offset = positions[index]
        if offset > starts.get(identifier, 0):
            tools.segment_stores.truncate_segment(_name(stored.stream, identifier), offset)
        if is_time_short():
            _note(tools, stored, replace(running, positions_done=index + 1), version)
            require_time_for_piece(f"truncation of {stored.stream.scoped_name}, up to segment {identifier}")
    truncate_marks(tools.records.store, tools.segment_stores, stored.stream, running.target)
    if is_time_short() and running.positions_done < len(positions):
        _note(tools, stored, replace(running, positions_done=len(positions)), version)


def _delete_segments(tools: Tools, stored: StoredStream) -> None:
    running, version = _running(tools, stored)
    while running.next_epoch < running.epochs.stop:
        numbers = _piece(running)
        gone = _replaced_in(tools, stored.stream, running, numbers)
        for start in range(0, len(gone), SEGMENTS_PER_CALL):
            batch = gone[start : start + SEGMENTS_PER_CALL]
            tools.segment_stores.delete_segments([_name(stored.stream, segment.segment_id) for segment in batch])
        running = replace(running, next_epoch=numbers.stop)
        if running.next_epoch < running.epochs.stop:
            version = _note(tools, stored, running, version)
            require_time_for_piece(f"truncation of {stored.stream.scoped_name}, up to epoch {running.next_epoch}")


def _close(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        completed(stream),
        delete_running_truncation(stream, None),
        delete_intent(stream),
    )


def _check_reached(tools: Tools, stream: Stream, running: RunningTruncation) -> None:
    """The acceptance has checked the offsets in sealed segments only, since it does not ask segment stores."""
    active = [
        identifier
        for identifier, offset in running.target.cut.positions
        if identifier in stream.epoch.by_id and offset > 0
    ]
    infos = tools.segment_stores.segment_infos([_name(stream, identifier) for identifier in active]) if active else []
    offsets = running.target.cut.offsets
    for identifier, info in zip(active, infos, strict=True):
        offset = offsets[identifier]
        if offset > info.length:
            raise IllegalStateError(
                f"{stream.scoped_name} cannot be truncated at {offset} of segment {identifier}, "
                f"which ends at {info.length}",
                details={"segmentId": identifier, "offset": offset, "length": info.length},
                code="beyond_the_tail",
            )


def _piece(running: RunningTruncation) -> range:
    return range(running.next_epoch, min(running.next_epoch + EPOCHS_PER_PIECE, running.epochs.stop))


def _replaced_in(tools: Tools, stream: Stream, running: RunningTruncation, numbers: range) -> list[StreamSegment]:
    epochs = tools.history.epochs(stream, numbers)
    return [segment for epoch in epochs for segment in segments_that_go(running, epoch)]


def _lengths(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> dict[int, int]:
    wanted = [segment.segment_id for segment in segments]
    sealed = tools.history.sealed_segments(stream, wanted)
    if len(sealed) < len(wanted):
        raise NotFoundError(f"stream {stream.scoped_name} does not know the sizes of segments that were replaced")
    return {identifier: end.length for identifier, end in sealed.items()}


def _note(tools: Tools, stored: StoredStream, running: RunningTruncation, version: int, *others: Write) -> int:
    """Record the progress of the truncation. Returns the version of its record."""
    write = replace_running_truncation(stored.stream, running, version)
    tools.records.while_unchanged(stored, write, *others)
    return version + 1


def _running(tools: Tools, stored: StoredStream) -> tuple[RunningTruncation, int]:
    """The running truncation; raises ConflictError if it was completed after `stored` was read."""
    running = tools.records.running_truncation(stored.stream)
    if running is None:
        raise ConflictError(f"another process completed the truncation of {stored.stream.scoped_name}: reading again")
    return running


def _name(stream: Stream, identifier: int) -> str:
    return segment_name(stream.scope, stream.name, identifier)


def _undo(store: MetadataStore, scope: str, name: str, request: PendingRequest) -> Undo:
    records = StreamRecords(store)
    stored = find_running(records, scope, name, request)
    truncation = records.running_truncation(stored.stream)
    if truncation is None:
        raise ConflictError(f"the truncation of {stored.stream.scoped_name} has just ended")
    running, version = truncation
    return undo_on_stream(
        records,
        stored,
        truncation_rolled_back(stored.stream, running),
        # Under its version: the head is recorded without a change of the stream's current record.
        delete_running_truncation(stored.stream, version),
        parameters={
            "cut": {str(identifier): offset for identifier, offset in running.target.cut.positions},
            **({"by_retention": True} if running.by_retention else {}),
        },
    )


def _replay(parameters: Mapping[str, Any]) -> Submit:
    """A truncation by retention is not replayed: a subscriber may have registered since, and need what it removes."""
    offsets = {int(identifier): int(offset) for identifier, offset in parameters["cut"].items()}
    if parameters.get("by_retention", False):
        return _refuse_replay
    return lambda acceptance, scope, stream: accept(acceptance, scope, stream, offsets)


def _refuse_replay(_acceptance: Acceptance, scope: str, stream: str) -> None:
    raise IllegalStateError(
        f"retention truncates {scope}/{stream} by itself, as far as its subscribers have read: drop the letter",
        code="not_replayable",
    )


TRUNCATE_STREAM = Operation(
    RequestKind.TRUNCATE_STREAM,
    STREAM,
    (
        Step("record the head", _record_head),
        Step("truncate segments", _truncate_segments),
        Step("delete segments", _delete_segments),
        Step("close", _close),
    ),
    Rollback(_undo, _replay),
)

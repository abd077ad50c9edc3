"""Delete a sealed stream: its segments from the oldest epoch on, its index entries, its records, then itself.

The records of an epoch are deleted when the segments that only they name are deleted, a bounded number at a time. So a
long deletion that is interrupted continues where it stopped. A tombstone remains, with the number at which the segments
of a new stream of this name begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.api.streams import StreamDeletion
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import STREAM
from headrace.controller.steps.stream_segments import delete_leftovers
from headrace.controller.steps.transaction_aborts import forget_transactions
from headrace.metadata.history_records import delete_epoch
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.stream import CURRENT_SORT, read_epochs
from headrace.metadata.stream_indexes import leave_due_index, unindex_tags, writes_of_deletion
from headrace.metadata.stream_records import (
    StoredStream,
    delete_intent,
    keys_named_in_current,
    replace_with_tombstone,
)
from headrace.metadata.watermark_records import delete_mark_segment
from headrace.model.epochs import Epoch
from headrace.model.names import segment_name
from headrace.model.requests import RequestKind
from headrace.model.segments import StreamSegment
from headrace.model.streams import Stream, start_deleting
from headrace.model.truncation import Truncation, segments_left
from headrace.ports.clock import require_time_for_piece
from headrace.ports.metadata_store import Delete, Key

_RECORDS_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""

EPOCHS_PER_PIECE = 40
"""Each has two records."""

SEGMENTS_PER_PIECE = 1_000
"""A piece may have up to twice as many, because its last epoch is not split."""


def accept(acceptance: Acceptance, scope: str, stream: str) -> StreamDeletion:
    """Accept the deletion; raises as `StreamService.delete_stream` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, stream))


def _accept(acceptance: Acceptance, scope: str, name: str) -> StreamDeletion:
    stored = acceptance.streams.get(scope, name)
    if stored.stream.is_deleting:
        return StreamDeletion(stored.stream.shown_state, is_deleting=True)
    deleting = start_deleting(stored.stream, stored.version)
    acceptance.change_stream(stored, deleting)
    return StreamDeletion(deleting.shown_state, is_deleting=True)


def _delete_replaced_segments(tools: Tools, stored: StoredStream) -> None:
    """The segments of all epochs but the last, the oldest first, except for those that a truncation deleted."""
    stream = stored.stream
    _, truncation = tools.records.get_with_truncation(stream.scope, stream.name)
    start = truncation.first_epoch if truncation else 0
    while True:
        epochs = read_epochs(tools.records.store, stream, start, EPOCHS_PER_PIECE + 1)
        if len(epochs) < 2:
            return
        gone, passed = _piece(epochs, truncation)
        _delete_segments(tools, stream, gone)
        tools.records.while_unchanged(stored, *(write for epoch in passed for write in delete_epoch(stream, epoch)))
        require_time_for_piece(f"deletion of {stream.scoped_name}, epochs up to {passed[-1].number}")


def _piece(epochs: Sequence[Epoch], truncation: Truncation | None) -> tuple[list[StreamSegment], list[Epoch]]:
    """The segments to delete together, and the epochs that are not needed after that; at least one epoch."""
    gone: list[StreamSegment] = []
    passed: list[Epoch] = []
    for epoch, following in pairwise(epochs):
        gone += segments_left(following.replaced, truncation)
        passed.append(epoch)
        if len(gone) >= SEGMENTS_PER_PIECE:
            break
    return gone, passed


def _delete_last_segments(tools: Tools, stored: StoredStream) -> None:
    """The segments of the active epoch, and the mark segment with the watermarks."""
    stream = stored.stream
    _delete_segments(tools, stream, stream.epoch.segments)
    delete_mark_segment(tools.segment_stores, stream)


def _delete_segments(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> None:
    if segments:
        tools.segment_stores.delete_segments(_names(stream, segments))


def _names(stream: Stream, segments: Sequence[StreamSegment]) -> list[str]:
    return [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]


def _has_tags(stored: StoredStream) -> bool:
    return bool(stored.stream.configuration.tags)


def _unindex_tags(tools: Tools, stored: StoredStream) -> None:
    unindex_tags(tools.records, stored, stored.stream.configuration.tags)


def _has_retention(stored: StoredStream) -> bool:
    return stored.stream.configuration.retention is not None


def _leave_due_index(tools: Tools, stored: StoredStream) -> None:
    leave_due_index(tools.records, stored)


def _delete_remaining_records(tools: Tools, stored: StoredStream) -> None:
    """All records in the stream's partition, except for the current record and the records that it names."""
    kept = {CURRENT_SORT, *(key.sort for key in keys_named_in_current(stored))}
    partition = stream_partition(stored.stream.scope, stored.stream.name)
    first: str | None = ""
    while first is not None:
        page = tools.records.store.query(partition, first=first, limit=_RECORDS_PER_WRITE)
        removable = [record.key for record in page.records if record.key.sort not in kept]
        _delete_records(tools, stored, removable)
        first = None if page.next_after is None else f"{page.next_after}\0"
        if first is not None:
            require_time_for_piece(f"deletion of the records of {stored.stream.scoped_name}")


def _delete_records(tools: Tools, stored: StoredStream, gone: Sequence[Key]) -> None:
    for start in range(0, len(gone), _RECORDS_PER_WRITE):
        writes = [Delete(key, None) for key in gone[start : start + _RECORDS_PER_WRITE]]
        tools.records.while_unchanged(stored, *writes)


def _forget(tools: Tools, stored: StoredStream) -> None:
    """Replace the stream by a tombstone. Its name can be used again, its segment numbers cannot."""
    stream = stored.stream
    tools.records.store.write(
        *replace_with_tombstone(stored),
        *writes_of_deletion(stream),
        delete_intent(stream),
    )


DELETE_STREAM = Operation(
    RequestKind.DELETE_STREAM,
    STREAM,
    (
        Step("forget transactions", forget_transactions),
        Step("delete replaced segments", _delete_replaced_segments),
        Step("delete last segments", _delete_last_segments),
        Step("delete leftovers", delete_leftovers),
        Step("unindex tags", _unindex_tags, applies=_has_tags),
        Step("leave the index of due retention", _leave_due_index, applies=_has_retention),
        Step("delete remaining records", _delete_remaining_records),
        Step("forget", _forget),
    ),
    rollback=MUST_COMPLETE,
)

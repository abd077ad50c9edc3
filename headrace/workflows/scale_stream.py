"""Scale a stream: create the new segments, put the new epoch on record, seal the old segments, go over to the epoch.

From the moment the epoch is on record the successors of the old segments can be asked for; only then are these sealed,
since a writer that finds its segment sealed asks at once.
"""

from __future__ import annotations

from headrace.codec.records.cold_mark_record import COLD_MARKS_FIRST, COLD_MARKS_LAST, segment_of_cold_mark
from headrace.metadata import keys
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.epochs import Epoch
from headrace.model.errors import ConflictError
from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import ScalingType
from headrace.model.streams import Stream, epoch_recorded, scaled
from headrace.ports.metadata_store import Delete
from headrace.workflows.creating import create_segments
from headrace.workflows.sealing import record_sizes, seal_segments
from headrace.workflows.steps import Step, Tools, Workflow

_MARKS_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def _is_planned(stream: Stream) -> bool:
    return stream.recorded_epoch == stream.epoch.number


def _is_recorded(stream: Stream) -> bool:
    return stream.recorded_epoch > stream.epoch.number


def _may_have_cold_marks(stream: Stream) -> bool:
    return _is_recorded(stream) and stream.configuration.scaling.type is not ScalingType.FIXED_NUM_SEGMENTS


def _create_segments(tools: Tools, stored: StoredStream) -> None:
    create_segments(tools, stored.stream, _planned_epoch(tools, stored).created)


def _record_epoch(tools: Tools, stored: StoredStream) -> None:
    epoch = _planned_epoch(tools, stored)
    tools.records.replace(stored, epoch_recorded(stored.stream, epoch), *create_epoch(stored.stream, epoch))


def _seal_replaced(tools: Tools, stored: StoredStream) -> None:
    seal_segments(tools, stored.stream, _planned_epoch(tools, stored).replaced)


def _record_sizes(tools: Tools, stored: StoredStream) -> None:
    epoch = _planned_epoch(tools, stored)
    record_sizes(tools, stored, epoch.replaced, replaced_in=epoch.number)


def _remove_cold_marks(tools: Tools, stored: StoredStream) -> None:
    """Of all segments that the coming epoch does not have; nobody marks a segment while its stream is SCALING."""
    stream, coming = stored.stream, _planned_epoch(tools, stored)
    partition = keys.stream_partition(stream.scope, stream.name)
    first: str | None = COLD_MARKS_FIRST
    while first is not None:
        page = tools.records.store.query(partition, first=first, last=COLD_MARKS_LAST, limit=_MARKS_PER_WRITE)
        gone = [record.key for record in page.records if segment_of_cold_mark(record.key.sort) not in coming.by_id]
        if gone:
            tools.records.while_unchanged(stored, *(Delete(key, None) for key in gone))
        first = None if page.next_after is None else f"{page.next_after}\0"


def _activate_epoch(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        scaled(stream, _planned_epoch(tools, stored)),
        Delete(keys.transition_key(stream.scope, stream.name), None),
        delete_intent(stream),
    )


def _planned_epoch(tools: Tools, stored: StoredStream) -> Epoch:
    """The epoch on its way. It is gone only if the scale ended after `stored` was read."""
    epoch = tools.records.transition(stored.stream)
    if epoch is None or epoch.number != stored.stream.epoch.number + 1:
        raise ConflictError(f"the scale of {stored.stream.scoped_name} was done by somebody else: reading again")
    return epoch


SCALE_STREAM = Workflow(
    RequestKind.SCALE_STREAM,
    (
        Step("create segments", _create_segments, applies=_is_planned),
        Step("record the epoch", _record_epoch, applies=_is_planned),
        Step("seal replaced segments", _seal_replaced, applies=_is_recorded),
        Step("record sizes", _record_sizes, applies=_is_recorded),
        Step("remove cold marks", _remove_cold_marks, applies=_may_have_cold_marks),
        Step("activate the epoch", _activate_epoch, applies=_is_recorded),
    ),
)

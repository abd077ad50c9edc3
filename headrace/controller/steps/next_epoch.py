"""The change from one epoch to the next: the steps that a scale and an update that raises the minimum share.

The new segments are created, the new epoch is recorded, and the old segments are sealed. Clients can query the
successors of the old segments as soon as the epoch is recorded. Only then are the old ones sealed, since a writer that
finds its segment sealed queries the successors at once.
"""

from __future__ import annotations

from headrace.controller.engine import Step, Tools
from headrace.controller.steps.stream_segments import create_segments, record_sizes, remove_leftovers, seal_segments
from headrace.metadata.cold_mark import COLD_MARKS_FIRST, COLD_MARKS_LAST, segment_of_cold_mark
from headrace.metadata.history_records import create_epoch
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.stream import create_transition, delete_transition
from headrace.metadata.stream_records import StoredStream
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import ConflictError
from headrace.model.scaling import growth_plan
from headrace.model.stream_configuration import ScalingType
from headrace.model.streams import epoch_recorded, grown
from headrace.ports.metadata_store import Delete

_MARKS_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def is_recorded(stored: StoredStream) -> bool:
    return stored.stream.recorded_epoch > stored.stream.epoch.number


def planned_epoch(tools: Tools, stored: StoredStream) -> Epoch:
    """The planned epoch; raises ConflictError if another process has completed the change since `stored` was read."""
    epoch = tools.records.transition(stored.stream)
    if epoch is None or epoch.number != stored.stream.epoch.number + 1:
        raise ConflictError(f"another process completed the scale of {stored.stream.scoped_name}: reading again")
    return epoch


def create_new_segments(tools: Tools, stored: StoredStream, epoch: Epoch) -> StoredStream | None:
    return create_segments(tools, stored, epoch.created)


def record_epoch(tools: Tools, stored: StoredStream, epoch: Epoch) -> None:
    tools.records.replace(stored, epoch_recorded(stored.stream, epoch), *create_epoch(stored.stream, epoch))


def _may_have_cold_marks(stored: StoredStream) -> bool:
    return is_recorded(stored) and stored.stream.configuration.scaling.type is not ScalingType.FIXED_NUM_SEGMENTS


def _seal_replaced(tools: Tools, stored: StoredStream) -> None:
    seal_segments(tools, stored.stream, planned_epoch(tools, stored).replaced)


def _record_sizes(tools: Tools, stored: StoredStream) -> None:
    epoch = planned_epoch(tools, stored)
    record_sizes(tools, stored, epoch.replaced, replaced_in=epoch.number)


def _remove_cold_marks(tools: Tools, stored: StoredStream) -> None:
    """Remove the marks of segments that the new epoch does not have. Segments are marked only while ACTIVE."""
    stream, coming = stored.stream, planned_epoch(tools, stored)
    partition = stream_partition(stream.scope, stream.name)
    first: str | None = COLD_MARKS_FIRST
    while first is not None:
        page = tools.records.store.query(partition, first=first, last=COLD_MARKS_LAST, limit=_MARKS_PER_WRITE)
        gone = [record.key for record in page.records if segment_of_cold_mark(record.key.sort) not in coming.by_id]
        if gone:
            tools.records.while_unchanged(stored, *(Delete(key, None) for key in gone))
        first = None if page.next_after is None else f"{page.next_after}\0"


STEPS_AFTER_RECORDING = (
    Step("seal replaced segments", _seal_replaced, applies=is_recorded),
    Step("record sizes", _record_sizes, applies=is_recorded),
    Step("remove cold marks", _remove_cold_marks, applies=_may_have_cold_marks),
    Step("remove leftovers", remove_leftovers, applies=is_recorded),
)
"""The steps after the epoch is recorded. The operation itself makes the epoch active."""


# Steps that grow a stream to a raised minimum of segments. They are part of the update that raises the minimum.
#
# An update that does not raise the minimum does not add segments, also if an operator has scaled the stream below its
# minimum. The new segments are planned when the new configuration is in force, and recorded like the plan of a scale.


def _may_have_to_grow(stored: StoredStream) -> bool:
    stream = stored.stream
    return not is_recorded(stored) and stream.configuration.scaling.min_segments > len(stream.epoch.segments)


def _plan(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    if tools.records.transition(stream) is not None:
        return
    update = tools.records.configuration_update(stream)
    if update is None:
        raise ConflictError(f"another process completed the update of {stream.scoped_name}: reading again")
    plan = growth_plan(stream.epoch, update.after.scaling.min_segments) if update.raises_minimum else None
    if plan is not None:
        epoch = scaled_epoch(stream.epoch, plan.sealed, plan.new_ranges, tools.clock.now_ms())
        tools.records.while_unchanged(stored, create_transition(stream, epoch))


def _create_segments(tools: Tools, stored: StoredStream) -> StoredStream | None:
    epoch = tools.records.transition(stored.stream)
    return create_new_segments(tools, stored, epoch) if epoch is not None else None


def _record_epoch(tools: Tools, stored: StoredStream) -> None:
    epoch = tools.records.transition(stored.stream)
    if epoch is not None:
        record_epoch(tools, stored, epoch)


def _activate_epoch(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        grown(stream, planned_epoch(tools, stored)),
        delete_transition(stream),
    )


GROW_STEPS = (
    Step("plan growth", _plan, applies=_may_have_to_grow),
    Step("create segments", _create_segments, applies=_may_have_to_grow),
    Step("record the epoch", _record_epoch, applies=_may_have_to_grow),
    *STEPS_AFTER_RECORDING,
    Step("go over to the epoch", _activate_epoch, applies=is_recorded),
)
"""For an update whose configuration is in force."""

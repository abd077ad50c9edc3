"""Grow a stream to a raised minimum of segments: part of the update that raises it, so that none is done without.

Only an update that raises the minimum grows: a stream that was scaled below its minimum by hand stays as it is. The new
segments are those of a scale, planned when the new configuration is in force and kept as the plan of a scale is.
"""

from __future__ import annotations

from headrace.controller.steps.next_epoch import (
    STEPS_ON_RECORD,
    create_new_segments,
    is_recorded,
    planned_epoch,
    record_epoch,
)
from headrace.controller.workflow import Step, Tools
from headrace.metadata import keys
from headrace.metadata.stream_records import StoredStream, create_transition
from headrace.model.epochs import scaled_epoch
from headrace.model.errors import ConflictError
from headrace.model.scaling import growth_plan
from headrace.model.streams import Stream, grown
from headrace.ports.metadata_store import Delete


def _may_have_to_grow(stream: Stream) -> bool:
    return not is_recorded(stream) and stream.configuration.scaling.min_segments > len(stream.epoch.segments)


def _plan(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    if tools.records.transition(stream) is not None:
        return
    update = tools.records.configuration_update(stream)
    if update is None:
        raise ConflictError(f"the update of {stream.scoped_name} was done by somebody else: reading again")
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


def _go_over(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        grown(stream, planned_epoch(tools, stored)),
        Delete(keys.transition_key(stream.scope, stream.name), None),
    )


GROW_STEPS = (
    Step("plan growth", _plan, applies=_may_have_to_grow),
    Step("create segments", _create_segments, applies=_may_have_to_grow),
    Step("record the epoch", _record_epoch, applies=_may_have_to_grow),
    *STEPS_ON_RECORD,
    Step("go over to the epoch", _go_over, applies=is_recorded),
)
"""For the workflow of an update, when the new configuration is in force."""

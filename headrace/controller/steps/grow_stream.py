"""Steps that grow a stream to a raised minimum of segments. They are part of the update that raises the minimum.

An update that does not raise the minimum does not add segments, also if an operator has scaled the stream below its
minimum. The new segments are planned when the new configuration is in force, and recorded like the plan of a scale.
"""

from __future__ import annotations

from headrace.controller.engine import Step, Tools
from headrace.controller.steps.next_epoch import (
    STEPS_AFTER_RECORDING,
    create_new_segments,
    is_recorded,
    planned_epoch,
    record_epoch,
)
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transition import create_transition, delete_transition
from headrace.model.epochs import scaled_epoch
from headrace.model.errors import ConflictError
from headrace.model.scaling import growth_plan
from headrace.model.streams import grown


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

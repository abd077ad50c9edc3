"""Steps on the segments of a stream: create and seal them, remove leftovers of a scale, and go to the next epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.controller.engine import Step, Tools
from headrace.metadata.cold_mark import COLD_MARKS_FIRST, COLD_MARKS_LAST, segment_of_cold_mark
from headrace.metadata.commit_records import commit_run_key
from headrace.metadata.history_records import (
    SealedSegment,
    Shard,
    create_epoch,
    extend_sealed_segments,
    shard_of_segment,
)
from headrace.metadata.orphan_segments import (
    Creation,
    StoredLeftovers,
    create_creation,
    delete_leftovers_record,
    find_leftovers,
    write_leftovers,
)
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.stream import create_transition, delete_transition
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import ConflictError, NotFoundError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.scaling import growth_plan
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.stream_configuration import ScalingPolicy, ScalingType
from headrace.model.streams import Stream, completed, epoch_recorded, grown
from headrace.model.truncation import segments_left
from headrace.ports.clock import is_time_short, require_time_for_piece
from headrace.ports.metadata_store import Check, Create, Delete, Replace, WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate

# Steps on the segments of a stream: create them, seal them, and remove those that a rolled-back scale left.

# Creates segments in the stores that own them, with the rate of their stream's policy.
#
# A process may stall before its request, while others complete the operation and a later one removes the segments. So
# the stream is read after the segments were created, and those that no later operation would remove are deleted again.
# That is safe at any time, because the name of a stream segment is never reused. A process may also stop before that
# read. So the segments are noted before the request, and a tick checks them when the process has certainly ended.

CREATION_LOOKED_AT_AFTER_MS = 3_600_000
"""Far longer than a process runs: its function ends after a minute, and its requests are answered or lost then."""

_SCALE_TYPES = {
    ScalingType.FIXED_NUM_SEGMENTS: 0,
    ScalingType.BY_RATE_IN_KBYTES_PER_SEC: 1,
    ScalingType.BY_RATE_IN_EVENTS_PER_SEC: 2,
}
"""The scale type in CreateSegment for each policy."""


def create_segments(tools: Tools, stored: StoredStream, segments: Sequence[StreamSegment]) -> StoredStream | None:
    """Create the segments. Returns the stream as it is afterwards, for the next step; None if it was deleted.

    One write and one read of metadata.
    """
    stream = stored.stream
    rate = scale_rate(stream.configuration.scaling)
    identifiers = tuple(segment.segment_id for segment in segments)
    creation = Creation(stream.scope, stream.name, stream.first_segment_number, identifiers)
    _note(tools, creation)
    try:
        tools.segment_stores.create_segments(_names(creation), rate, stream.configuration.rollover_size_bytes)
    except UnavailableError:
        _delete_unless_pending(tools, stored, creation)  # some of the requests may have been carried out
        raise
    return _delete_unless_pending(tools, stored, creation)


def delete_unwanted(tools: Tools, creation: Creation) -> None:
    """Delete the segments that the stream does not have, and that no operation on it would remove."""
    unwanted = _unwanted(tools, creation)
    if unwanted:
        tools.segment_stores.delete_segments(_names(creation, unwanted))


def _note(tools: Tools, creation: Creation) -> None:
    due_ms = tools.clock.now_ms() + CREATION_LOOKED_AT_AFTER_MS
    with suppress(WriteConflictError):  # another processor has noted the same at this moment
        tools.records.store.write(create_creation(creation, due_ms))


def _delete_unless_pending(tools: Tools, stored: StoredStream, creation: Creation) -> StoredStream | None:
    """Delete the segments that were created too late. Returns the present stream."""
    present = tools.records.find(creation.scope, creation.stream)
    if present is None or present.stream.pending != stored.stream.pending:
        delete_unwanted(tools, creation)
    return present


def _unwanted(tools: Tools, creation: Creation) -> Sequence[int]:
    """The segments of an operation that has ended that no deletion, truncation or scale will remove."""
    try:
        present, truncation = tools.records.get_with_truncation(creation.scope, creation.stream)
        if present.stream.first_segment_number != creation.first_segment_number or present.stream.is_deleting:
            return creation.segments
        numbers = sorted({segment_epoch(segment) for segment in creation.segments})
        if numbers[-1] > present.stream.recorded_epoch:
            return ()  # the operation runs
        recorded = {
            identifier: segment
            for epoch in tools.history.epochs(present.stream, numbers)
            for identifier, segment in epoch.by_id.items()
        }
    except NotFoundError:
        return creation.segments
    present_segments = [recorded[segment] for segment in creation.segments if segment in recorded]
    kept = {segment.segment_id for segment in segments_left(present_segments, truncation)}
    return [segment for segment in creation.segments if segment not in kept]


def _names(creation: Creation, identifiers: Iterable[int] | None = None) -> list[str]:
    chosen = creation.segments if identifiers is None else identifiers
    return [segment_name(creation.scope, creation.stream, each) for each in chosen]


def scale_rate(policy: ScalingPolicy) -> SegmentScaleRate:
    return SegmentScaleRate(_SCALE_TYPES[policy.type], policy.target_rate)


# Empty segments of a scale that was rolled back. The rollback notes them, and the next scale removes them.
#
# The rollback cannot remove them, because a late process may be creating them. It uses up the number of their epoch, so
# that no later scale uses their names.

LEFTOVERS_MAX = 10_000
"""The number of segments that are noted for one stream: those of ten of the largest scales. Others are not removed."""

SEGMENTS_PER_CALL = 1_000


def note_leftovers(records: StreamRecords, stream: Stream, planned: Epoch) -> Create | Replace:
    """The write that belongs to the rollback of a scale to `planned`; one read."""
    known = find_leftovers(records.store, stream)
    noted = {*(known.identifiers if known else ()), *(segment.segment_id for segment in planned.created)}
    return write_leftovers(stream, sorted(noted)[:LEFTOVERS_MAX], known.version if known else None)


def remove_leftovers(tools: Tools, stored: StoredStream) -> None:
    """Delete the leftovers once the epoch of a scale is recorded."""
    leftovers = find_leftovers(tools.records.store, stored.stream)
    if leftovers is not None:
        _delete(tools, stored, leftovers)
        tools.records.while_unchanged(stored, delete_leftovers_record(stored.stream, leftovers.version))


def delete_leftovers(tools: Tools, stored: StoredStream) -> None:
    """Delete the leftovers of a stream that is deleted. Their record is deleted with its partition."""
    leftovers = find_leftovers(tools.records.store, stored.stream)
    if leftovers is not None:
        _delete(tools, stored, leftovers)


def _delete(tools: Tools, stored: StoredStream, leftovers: StoredLeftovers) -> None:
    stream, left = stored.stream, leftovers.identifiers
    while left:
        names = [segment_name(stream.scope, stream.name, each) for each in left[:SEGMENTS_PER_CALL]]
        tools.segment_stores.delete_segments(names)
        left = left[SEGMENTS_PER_CALL:]
        if left and is_time_short():
            tools.records.while_unchanged(stored, write_leftovers(stream, left, leftovers.version))
            require_time_for_piece(f"deletion of leftover segments of {stream.scoped_name}")


# Seals segments and records their sizes: part of scales, rolling commits, and the seal and the freeze of a stream.


def seal_segments(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> None:
    tools.segment_stores.seal_segments(
        [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    )


def record_sizes(
    tools: Tools, stored: StoredStream, segments: Sequence[StreamSegment], replaced_in: int | None
) -> None:
    """Record the final lengths, shard by shard. Entries that exist already stay unchanged.

    Raises:
        UnavailableError: a segment is not sealed yet; seal it again.
    """
    stream = stored.stream
    names = [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    shards: dict[Shard, dict[int, SealedSegment]] = {}
    for segment, info in zip(segments, tools.segment_stores.segment_infos(names), strict=True):
        if not info.is_sealed:
            raise UnavailableError(f"segment {info.name} was to be sealed but is not: trying again")
        of_shard = shards.setdefault(shard_of_segment(segment.segment_id), {})
        of_shard[segment.segment_id] = SealedSegment(info.length, replaced_in)
    for shard, sealed in sorted(shards.items()):
        _extend_shard(tools, stored, shard, sealed)


def close_sealed(tools: Tools, stored: StoredStream) -> None:
    """End a seal or a freeze if the segments that were sealed are still the active ones, and no run commits into them.

    A transaction that was begun late may be marked after the others were settled. A run that commits it, perhaps in
    another process, must end before, because it replaces the segments.
    """
    stream = stored.stream
    no_run = Check(commit_run_key(stream.scope, stream.name), None)
    tools.records.replace(stored, completed(stream), delete_intent(stream), no_run)


def _extend_shard(tools: Tools, stored: StoredStream, shard: Shard, sealed: dict[int, SealedSegment]) -> None:
    write = extend_sealed_segments(tools.records.store, stored.stream, shard, sealed)
    if write is not None:
        tools.records.while_unchanged(stored, write)


# The change from one epoch to the next: the steps that a scale and an update that raises the minimum share.
#
# The new segments are created, the new epoch is recorded, and the old segments are sealed. Clients can query the
# successors of the old segments as soon as the epoch is recorded. Only then are the old ones sealed, since a writer
# that finds its segment sealed queries the successors at once.

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

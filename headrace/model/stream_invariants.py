"""The invariants of a stream's current record: predicates over the record before and after a write.

`before` is None when the stream is created. A write that violates an invariant is a bug in Headrace, and is refused
before it reaches the metadata store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from headrace.model.epochs import Epoch
from headrace.model.errors import CorruptError
from headrace.model.segments import covers_key_space_once, merged
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState, may_become, operation_in
from headrace.model.streams import Stream

Invariant = Callable[[Stream | None, Stream], bool]


def key_space_is_covered_once(_before: Stream | None, after: Stream) -> bool:
    return covers_key_space_once([segment.key_range for segment in after.epoch.segments])


def segments_are_sorted_and_unique(_before: Stream | None, after: Stream) -> bool:
    segments = after.epoch.segments
    in_order = all(left.key_range < right.key_range for left, right in itertools.pairwise(segments))
    return in_order and len({segment.number for segment in segments}) == len(segments)


def state_transition_is_allowed(before: Stream | None, after: Stream) -> bool:
    return after.state is StreamState.CREATING if before is None else may_become(before.state, after.state)


def identity_stays(before: Stream | None, after: Stream) -> bool:
    return before is None or (
        (before.scope, before.name, before.creation_time_ms, before.first_segment_number)
        == (after.scope, after.name, after.creation_time_ms, after.first_segment_number)
    )


def configuration_changes_by_updates(before: Stream | None, after: Stream) -> bool:
    """Only an operation that may do so changes the configuration, and its version then grows by one."""
    if before is None:
        return after.configuration_version == 0
    if after.configuration_version == before.configuration_version:
        return after.configuration == before.configuration
    operation = operation_in(after.state)
    is_allowed = before.state is after.state and operation is not None and operation.changes_configuration
    return is_allowed and after.configuration_version == before.configuration_version + 1


def epochs_follow(before: Stream | None, after: Stream) -> bool:
    if before is None:
        return after.epoch.number == 0 and after.recorded_epoch == 0
    if after.epoch.number == before.epoch.number:
        return after.epoch == before.epoch
    is_successor = follows(before.epoch, after.epoch) or repeats(before.epoch, after.epoch)
    return is_successor and after.recorded_epoch == after.epoch.number


def epoch_is_recorded_before_it_is_active(before: Stream | None, after: Stream) -> bool:
    if before is None:
        return True
    ahead = after.recorded_epoch - after.epoch.number
    is_unrecorded = after.epoch.number > before.recorded_epoch and not _changes_nothing(before.epoch, after.epoch)
    if after.recorded_epoch < before.recorded_epoch or is_unrecorded:
        return False
    operation = operation_in(after.state)
    return ahead == 0 or (operation is not None and ahead == operation.epochs_ahead)


def first_numbers_continue(before: Stream | None, after: Stream) -> bool:
    """The numbers of the first epoch are consecutive from the first segment number of the stream's incarnation."""
    if before is not None:
        return True
    first = after.first_segment_number
    return sorted(segment.number for segment in after.epoch.segments) == list(
        range(first, first + len(after.epoch.segments))
    )


def one_request_runs(_before: Stream | None, after: Stream) -> bool:
    """The pending request has the kind that belongs to the state. A sealed stream may have a pending deletion."""
    kind = after.pending.kind if after.pending else None
    operation = operation_in(after.state)
    if kind is None:
        return operation is None or after.state is StreamState.SEALED
    return operation is not None and kind is operation.kind


def the_following_request_waits_for_commits(before: Stream | None, after: Stream) -> bool:
    """A request waits only while transactions are committed. It is kept until it runs after the commit."""
    if after.following is not None and (
        after.state is not StreamState.COMMITTING_TXN
        or not STREAM_OPERATIONS[after.following.kind].may_wait_for_commits
    ):
        return False
    waited = before.following if before else None
    return waited is None or waited in (after.following, after.pending)


INVARIANTS: tuple[Invariant, ...] = (
    key_space_is_covered_once,
    segments_are_sorted_and_unique,
    state_transition_is_allowed,
    identity_stays,
    configuration_changes_by_updates,
    epochs_follow,
    epoch_is_recorded_before_it_is_active,
    first_numbers_continue,
    one_request_runs,
    the_following_request_waits_for_commits,
)


def follows(before: Epoch, after: Epoch) -> bool:
    """Whether `after` is a valid successor of `before`: the same key space, new numbers, kept segments unchanged.

    A duplicate keeps no segment and reuses the numbers of an earlier epoch. A scale that was rolled back keeps all
    segments.
    """
    if (
        after.number != before.number + 1
        or after.creation_time_ms <= before.creation_time_ms
        or not set(after.replaced) <= set(before.segments)
        or merged(one.key_range for one in after.replaced) != merged(one.key_range for one in after.created)
    ):
        return False
    if after.duplicate_of is not None and after.changes_nothing:
        return _changes_nothing(before, after)
    if after.duplicate_of is not None:
        return (
            after.duplicate_of <= before.number
            and set(after.replaced) == set(before.segments)
            and after.created == after.segments
        )
    replaced = {segment.segment_id for segment in after.replaced}
    kept = [segment for segment in before.segments if segment.segment_id not in replaced]
    numbers = [segment.number for segment in after.created]
    first = before.first_new_number(len(numbers)) if numbers else 0
    return set(after.segments) == {*kept, *after.created} and numbers == list(range(first, first + len(numbers)))


def _changes_nothing(before: Epoch, after: Epoch) -> bool:
    """Whether `after` has the segments of `before` and the next number."""
    return (after.number, after.segments, after.replaced, after.reference_epoch) == (
        before.number + 1,
        before.segments,
        (),
        before.reference_epoch,
    )


def repeats(before: Epoch, after: Epoch) -> bool:
    """Whether `after` is the duplicate of `before` that ends a rolling commit, two numbers later."""
    return (
        after.number == before.number + 2
        and after.creation_time_ms > before.creation_time_ms + 1
        and after.reference_epoch == before.reference_epoch
        and after.created == after.segments
        and [(one.number, one.key_range) for one in after.segments]
        == [(one.number, one.key_range) for one in before.segments]
    )


def check_write(before: Stream | None, after: Stream) -> None:
    """Raises CorruptError with the name of the invariant if this write would violate one."""
    for invariant in INVARIANTS:
        if not invariant(before, after):
            raise CorruptError(
                f"refusing to write stream {after.scoped_name}: it would violate {invariant.__name__}",
                details={"invariant": invariant.__name__},
            )

"""Streams: the current record of a stream, with the operation that runs, and the invariants of each write of it.

The functions are pure: each returns the stream after a change, or raises if the stream's state does not allow the
change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.model.epochs import Epoch, rolled_back_epoch
from headrace.model.errors import ConflictError, CorruptError, FrozenError, IllegalStateError, SealedError
from headrace.model.log_classes import first_number_of_class
from headrace.model.names import scoped_stream_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.segments import covers_key_space_once, merged
from headrace.model.stream_configuration import ConfigurationUpdate, StreamConfiguration
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState, may_become, operation_in
from headrace.model.truncation import RunningTruncation


@dataclass(frozen=True, slots=True)
class Stream:
    """The current record of a stream.

    A stream that is deleted and created again continues its segment numbers, so that `first_segment_number` identifies
    the incarnation of the name. `recorded_epoch` is the number of the newest epoch whose record is written. It is ahead
    of the active epoch while segments are being sealed for it: by one in a scale, by two in a rolling commit.
    `configuration_version` counts the updates of the configuration. `following` is an operation that was accepted while
    a batch of transactions is committed; it begins in the write that ends the batch.
    """

    scope: str
    name: str
    state: StreamState
    configuration: StreamConfiguration
    creation_time_ms: int
    first_segment_number: int
    epoch: Epoch
    recorded_epoch: int
    pending: PendingRequest | None
    configuration_version: int = 0
    following: PendingRequest | None = None

    @property
    def shown_state(self) -> StreamState:
        """The state that users see. If an operation waits for a batch of commits, it is the state of that operation."""
        return STREAM_OPERATIONS[self.following.kind].state if self.following else self.state

    @property
    def newest_request(self) -> PendingRequest | None:
        """The operation that was accepted last: the one that waits, or else the one that runs."""
        return self.following or self.pending

    def has_accepted(self, kind: RequestKind) -> bool:
        """Whether an operation of this kind runs or waits."""
        return any(each is not None and each.kind is kind for each in (self.pending, self.following))

    @property
    def scoped_name(self) -> str:
        return scoped_stream_name(self.scope, self.name)

    @property
    def is_deleting(self) -> bool:
        return self.pending is not None and self.pending.kind is RequestKind.DELETE_STREAM

    def is_pending(self, request: PendingRequest) -> bool:
        """Whether `request` is the operation that runs."""
        return self.pending == request

    def is_following(self, request: PendingRequest) -> bool:
        """Whether `request` is the operation that waits for a batch of commits."""
        return self.following == request


def new_stream(
    scope: str, name: str, configuration: StreamConfiguration, first_segment_number: int, now_ms: int
) -> Stream:
    """A stream that is being created: its segments do not exist yet.

    Its first segment has the first number, at least `first_segment_number`, from which its class has enough numbers.
    """
    segments = configuration.scaling.min_segments
    first_segment_number = first_number_of_class(configuration.log_class, first_segment_number, segments)
    return Stream(
        scope=scope,
        name=name,
        state=StreamState.CREATING,
        configuration=configuration,
        creation_time_ms=now_ms,
        first_segment_number=first_segment_number,
        epoch=Epoch.first(segments, first_segment_number, now_ms),
        recorded_epoch=0,
        pending=PendingRequest(RequestKind.CREATE_STREAM, f"create-{first_segment_number}-{now_ms}"),
    )


def started(stream: Stream, version: int, kind: RequestKind) -> Stream:
    """The stream with an operation that runs, or that waits for the batch of commits that runs.

    `version` is the version of the record that was read. No operation may wait while the batch changes the epoch, since
    it would be planned on the wrong epoch. A deletion starts with `start_deleting`.

    Raises:
        SealedError: the stream is sealed.
        FrozenError: the stream is frozen, and the operation needs one that is not.
        ConflictError: another operation runs, or one waits already: repeat soon.
    """
    operation = STREAM_OPERATIONS[kind]
    may_wait = operation.may_wait_for_commits and stream.recorded_epoch == stream.epoch.number
    if stream.state is StreamState.COMMITTING_TXN and stream.following is None and may_wait:
        return replace(stream, following=_request(stream, version, kind))
    if stream.state in operation.begins_in:
        return replace(stream, state=operation.state, pending=_request(stream, version, kind))
    if stream.state is StreamState.SEALED:
        raise SealedError(f"stream {stream.scoped_name} is sealed", details={"state": str(stream.state)})
    if stream.state is StreamState.FROZEN:
        raise frozen_error(stream.scope, stream.name)
    raise ConflictError(
        f"stream {stream.scoped_name} is {stream.state}: repeat the request when the operation is done",
        details={"state": str(stream.state)},
    )


def frozen_error(scope: str, name: str) -> FrozenError:
    """What writers, transactions and operations get that a frozen stream refuses."""
    return FrozenError(
        f"stream {scoped_stream_name(scope, name)} is frozen: unfreeze it, and try again",
        details={"scope": scope, "stream": name},
    )


def completed(stream: Stream) -> Stream:
    """The stream after the last step of the running operation.

    Raises:
        CorruptError: no operation runs, or the stream no longer exists after it.
    """
    operation = STREAM_OPERATIONS.get(stream.pending.kind) if stream.pending else None
    if operation is None or operation.completes_in is None:
        raise CorruptError(f"{stream.scoped_name} is {stream.state} and has no operation to complete")
    return replace(stream, state=operation.completes_in, pending=None)


def configured(stream: Stream, update: ConfigurationUpdate) -> Stream:
    """The stream with the new configuration, while the update's other changes are still being made."""
    return replace(stream, configuration=update.after, configuration_version=update.version)


def grown(stream: Stream, epoch: Epoch) -> Stream:
    """The stream after an update that raises the minimum has added segments; the rest of the update follows."""
    return replace(stream, epoch=epoch)


def update_rolled_back(stream: Stream, update: ConfigurationUpdate) -> Stream:
    """The stream without the update; raises IllegalStateError unless an update runs that is not in force yet."""
    if stream.state is not StreamState.UPDATING or is_in_force(stream, update):
        raise IllegalStateError(
            f"{stream.scoped_name} has no update to roll back: an update that is in force must complete"
        )
    return replace(stream, state=StreamState.ACTIVE, pending=None)


def is_in_force(stream: Stream, update: ConfigurationUpdate) -> bool:
    return stream.configuration_version >= update.version


def truncation_rolled_back(stream: Stream, running: RunningTruncation) -> Stream:
    """The stream without the truncation. A head never moves back, so a recorded cut cannot be rolled back.

    Raises:
        IllegalStateError: no truncation runs, or its cut is recorded.
    """
    if stream.state is not StreamState.TRUNCATING or running.is_recorded:
        raise IllegalStateError(
            f"{stream.scoped_name} has no truncation to roll back: a truncation whose cut is recorded must complete"
        )
    return replace(stream, state=StreamState.ACTIVE, pending=None)


def may_have_sealed_by_clients(stream: Stream) -> bool:
    """Whether a client must have sealed an active segment that is sealed: no operation that seals it has come so far.

    A stream that commits transactions replaces its segments itself as soon as epochs are recorded.

    Raises:
        FrozenError: the stream is frozen: its active segments are sealed, and have no successors until it is unfrozen.
    """
    if stream.state.is_frozen:
        raise frozen_error(stream.scope, stream.name)
    may_scale = stream.state is StreamState.COMMITTING_TXN and stream.following is None
    return (stream.state is StreamState.ACTIVE or may_scale) and stream.recorded_epoch == stream.epoch.number


def epoch_recorded(stream: Stream, epoch: Epoch) -> Stream:
    """The stream after the next epoch was recorded: clients may see its segments as successors."""
    return replace(stream, recorded_epoch=epoch.number)


def scaled(stream: Stream, epoch: Epoch) -> Stream:
    """The stream after the replaced segments were sealed: the next epoch is active."""
    return replace(completed(stream), epoch=epoch)


def scale_rolled_back(stream: Stream, planned: Epoch) -> Stream:
    """The stream with an epoch that changes nothing, in place of the planned one.

    Raises:
        IllegalStateError: no scale runs, or its epoch is recorded.
    """
    if stream.state is not StreamState.SCALING or stream.recorded_epoch != stream.epoch.number:
        raise IllegalStateError(
            f"{stream.scoped_name} has no scale to roll back: a scale whose epoch is recorded must complete"
        )
    epoch = rolled_back_epoch(stream.epoch, planned)
    return replace(stream, state=StreamState.ACTIVE, epoch=epoch, recorded_epoch=epoch.number, pending=None)


def rolled(stream: Stream, epoch: Epoch) -> Stream:
    """The stream after a rolling commit has replaced the active epoch by its duplicate."""
    return replace(stream, epoch=epoch)


def commit_ended(stream: Stream) -> Stream:
    """The stream after the commit; the operation that waited for it begins.

    A stream that is being sealed commits its remaining transactions first, and stays in that state.
    """
    if stream.state is not StreamState.COMMITTING_TXN:
        return stream
    if stream.following is not None:
        state = STREAM_OPERATIONS[stream.following.kind].state
        return replace(stream, state=state, pending=stream.following, following=None)
    return completed(stream)


def start_deleting(stream: Stream, version: int) -> Stream:
    """The stream while it is deleted; raises IllegalStateError, code "stream_not_sealed", unless it is sealed."""
    if stream.state is not StreamState.SEALED:
        raise IllegalStateError(
            f"stream {stream.scoped_name} is {stream.state}: seal it before you delete it",
            details={"state": str(stream.state)},
            code="stream_not_sealed",
        )
    return replace(stream, pending=_request(stream, version, RequestKind.DELETE_STREAM))


def _request(stream: Stream, version: int, kind: RequestKind) -> PendingRequest:
    """A request with a unique id: within one incarnation of a stream each version is written once."""
    return PendingRequest(kind, f"{kind}-{stream.first_segment_number}-{version + 1}")


# The invariants of a stream's current record: predicates over the record before and after a write.
#
# `before` is None when the stream is created. A write that violates an invariant is a bug in Headrace, and is refused
# before it reaches the metadata store.

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
        or merged(segment.key_range for segment in after.replaced)
        != merged(segment.key_range for segment in after.created)
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
        and [(segment.number, segment.key_range) for segment in after.segments]
        == [(segment.number, segment.key_range) for segment in before.segments]
    )


def check_write(before: Stream | None, after: Stream) -> None:
    """Raises CorruptError with the name of the invariant if this write would violate one."""
    for invariant in INVARIANTS:
        if not invariant(before, after):
            raise CorruptError(
                f"refusing to write stream {after.scoped_name}: it would violate {invariant.__name__}",
                details={"invariant": invariant.__name__},
            )

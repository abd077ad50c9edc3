"""Streams: the current record of a stream, with its state, active epoch, configuration and the operation that runs.

The functions are pure: each returns the stream after a change, or raises if the stream's state does not allow the
change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.model.epochs import Epoch, rolled_back_epoch
from headrace.model.errors import ConflictError, CorruptError, FrozenError, IllegalStateError, SealedError
from headrace.model.log_classes import first_number_of_class
from headrace.model.names import scoped_stream_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_configuration import ConfigurationUpdate, StreamConfiguration
from headrace.model.stream_state import STREAM_OPERATIONS, StreamState
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
        return any(one is not None and one.kind is kind for one in (self.pending, self.following))

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

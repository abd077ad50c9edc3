"""The states of a stream, and the operations that run in them, with what the invariants allow each one to do.

Each kind of request on a stream has one entry in `STREAM_OPERATIONS`. The transitions between the states follow from
the entries. They are those of Pravega, with one difference. An operation that waits for a batch of commits begins when
the batch ends, and the stream does not become ACTIVE in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.requests import RequestKind


class StreamState(StrEnum):
    """The state of a stream. The API and the stored records contain these values."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    SCALING = "SCALING"
    COMMITTING_TXN = "COMMITTING_TXN"
    TRUNCATING = "TRUNCATING"
    SEALING = "SEALING"
    SEALED = "SEALED"
    FREEZING = "FREEZING"
    FROZEN = "FROZEN"
    UNFREEZING = "UNFREEZING"

    @property
    def is_readable(self) -> bool:
        """Whether the stream has segments: from the end of its creation on."""
        return self is not StreamState.CREATING

    @property
    def takes_events(self) -> bool:
        """Whether events are appended and transactions begin, or will be when the operation that runs is complete."""
        return self not in (StreamState.SEALING, StreamState.SEALED) and not self.is_frozen

    @property
    def is_idle(self) -> bool:
        """Whether no operation runs, so that any may begin."""
        return self is StreamState.ACTIVE

    @property
    def is_sealed(self) -> bool:
        """Whether the stream has its last event. Only its deletion can follow."""
        return self is StreamState.SEALED

    @property
    def is_frozen(self) -> bool:
        """Whether the stream refuses events until a user unfreezes it. Its readers wait for those that follow."""
        return self in (StreamState.FREEZING, StreamState.FROZEN)

    @property
    def settles_transactions(self) -> bool:
        """Whether an operation runs that completes all transactions first. The state stays while they are committed."""
        return self in (StreamState.SEALING, StreamState.FREEZING)

    def runs(self, kind: RequestKind) -> bool:
        """Whether an operation of this kind runs. A deletion is not seen: the stream stays SEALED."""
        return STREAM_OPERATIONS[kind].state is self is not StreamState.SEALED


@dataclass(frozen=True, slots=True)
class StreamOperation:
    """What the invariants of a stream need to know about one operation.

    The operation begins in one of the states `begins_in`. The stream is in `state` while the operation runs, and in
    `completes_in` afterwards; None if it no longer exists. A new stream begins in CREATING.
    Only an operation that `changes_configuration` may write another configuration. `epochs_ahead` is the number of
    epochs that the operation may record before they are active. An operation that `may_wait_for_commits` is accepted
    while a batch of transactions is committed, and begins after the batch.
    """

    kind: RequestKind
    begins_in: frozenset[StreamState]
    state: StreamState
    completes_in: StreamState | None
    changes_configuration: bool
    epochs_ahead: int
    may_wait_for_commits: bool


_ACTIVE = frozenset({StreamState.ACTIVE})
_FROZEN = frozenset({StreamState.FROZEN})

STREAM_OPERATIONS: Mapping[RequestKind, StreamOperation] = {
    operation.kind: operation
    for operation in (
        StreamOperation(
            RequestKind.CREATE_STREAM,
            frozenset(),
            StreamState.CREATING,
            completes_in=StreamState.ACTIVE,
            changes_configuration=False,
            epochs_ahead=0,
            may_wait_for_commits=False,
        ),
        StreamOperation(
            RequestKind.UPDATE_STREAM,
            _ACTIVE,
            StreamState.UPDATING,
            completes_in=StreamState.ACTIVE,
            changes_configuration=True,
            epochs_ahead=1,  # an update that raises the minimum splits segments
            may_wait_for_commits=True,
        ),
        StreamOperation(
            RequestKind.TRUNCATE_STREAM,
            _ACTIVE,
            StreamState.TRUNCATING,
            completes_in=StreamState.ACTIVE,
            changes_configuration=False,
            epochs_ahead=0,
            may_wait_for_commits=True,
        ),
        StreamOperation(
            RequestKind.SCALE_STREAM,
            _ACTIVE,
            StreamState.SCALING,
            completes_in=StreamState.ACTIVE,
            changes_configuration=False,
            epochs_ahead=1,
            may_wait_for_commits=True,
        ),
        StreamOperation(
            RequestKind.COMMIT_TRANSACTIONS,
            _ACTIVE,
            StreamState.COMMITTING_TXN,
            completes_in=StreamState.ACTIVE,
            changes_configuration=False,
            epochs_ahead=2,  # a rolling commit goes through one epoch to another
            may_wait_for_commits=False,
        ),
        StreamOperation(
            RequestKind.SEAL_STREAM,
            _ACTIVE | _FROZEN,
            StreamState.SEALING,
            completes_in=StreamState.SEALED,
            changes_configuration=False,
            epochs_ahead=2,  # transactions are committed before a stream is sealed
            may_wait_for_commits=True,
        ),
        StreamOperation(
            RequestKind.FREEZE_STREAM,
            _ACTIVE,
            StreamState.FREEZING,
            completes_in=StreamState.FROZEN,
            changes_configuration=False,
            epochs_ahead=2,  # transactions are committed before a stream is frozen
            may_wait_for_commits=True,
        ),
        StreamOperation(
            RequestKind.UNFREEZE_STREAM,
            _FROZEN,
            StreamState.UNFREEZING,
            completes_in=StreamState.ACTIVE,
            changes_configuration=False,
            epochs_ahead=1,  # its segments replace the sealed ones
            may_wait_for_commits=False,
        ),
        StreamOperation(
            RequestKind.DELETE_STREAM,
            frozenset({StreamState.SEALED}),
            StreamState.SEALED,
            completes_in=None,
            changes_configuration=False,
            epochs_ahead=0,
            may_wait_for_commits=False,
        ),
    )
}

_OPERATION_OF_STATE = {operation.state: operation for operation in STREAM_OPERATIONS.values()}


def operation_in(state: StreamState) -> StreamOperation | None:
    """The operation that may run on a stream in this state; None for ACTIVE and FROZEN."""
    return _OPERATION_OF_STATE.get(state)


def may_become(before: StreamState, after: StreamState) -> bool:
    """Whether a stream may change from one state to the other. It may always stay in its state."""
    return before is after or after in _successors(before)


def _successors(state: StreamState) -> set[StreamState]:
    operation = operation_in(state)
    if operation is None:
        return {operation.state for operation in STREAM_OPERATIONS.values() if state in operation.begins_in}
    successors = set() if operation.completes_in is None else {operation.completes_in}
    if operation.kind is RequestKind.COMMIT_TRANSACTIONS:
        successors |= {operation.state for operation in STREAM_OPERATIONS.values() if operation.may_wait_for_commits}
    return successors

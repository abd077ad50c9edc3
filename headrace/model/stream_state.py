"""The states of a stream and the transitions between them.

They are those of Pravega, with one difference. An operation that waits for a batch of commits begins when the batch
ends, and the stream does not become ACTIVE in between.
"""

from __future__ import annotations

from enum import StrEnum


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


_ALLOWED: dict[StreamState, frozenset[StreamState]] = {
    StreamState.CREATING: frozenset({StreamState.ACTIVE}),
    StreamState.ACTIVE: frozenset(set(StreamState) - {StreamState.CREATING, StreamState.ACTIVE}),
    StreamState.UPDATING: frozenset({StreamState.ACTIVE}),
    StreamState.SCALING: frozenset({StreamState.ACTIVE}),
    StreamState.COMMITTING_TXN: frozenset(
        {
            StreamState.ACTIVE,
            StreamState.UPDATING,
            StreamState.SCALING,
            StreamState.TRUNCATING,
            StreamState.SEALING,
        }
    ),
    StreamState.TRUNCATING: frozenset({StreamState.ACTIVE}),
    StreamState.SEALING: frozenset({StreamState.SEALED}),
    StreamState.SEALED: frozenset(),
}


def may_become(before: StreamState, after: StreamState) -> bool:
    """Whether a stream may change from one state to the other. It may always stay in its state."""
    return before is after or after in _ALLOWED[before]

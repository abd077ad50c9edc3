"""Whether a stream accepts transactions, and those that were begun a moment ago."""

from __future__ import annotations

from headrace.model.errors import SealedError, UnavailableError
from headrace.model.streams import Stream, frozen_error


def is_closed(stream: Stream) -> bool:
    """Whether the stream is sealed or frozen, or will be when the operation that runs is complete."""
    return not stream.shown_state.takes_events


def check_accepts_transactions(stream: Stream) -> Stream:
    """Raises UnavailableError, code "stream_not_ready", SealedError or FrozenError."""
    if not stream.state.is_readable:
        raise UnavailableError(
            f"stream {stream.scoped_name} is being created: repeat until it is ACTIVE", code="stream_not_ready"
        )
    if stream.shown_state.is_frozen:
        raise frozen_error(stream.scope, stream.name)
    if is_closed(stream):
        raise SealedError(
            f"stream {stream.scoped_name} is {stream.shown_state}: it accepts no transactions",
            details={"state": str(stream.shown_state)},
        )
    return stream


def takes_transactions_of(stream: Stream, earlier: Stream) -> bool:
    """Whether the stream is not closed, and transactions that were begun on it earlier merge into its segments."""
    return (stream.first_segment_number, stream.epoch.reference_epoch) == (
        earlier.first_segment_number,
        earlier.epoch.reference_epoch,
    ) and not is_closed(stream)

"""Adds events in the thread that writes them, for the synchronous writers. Calls wait while the buffer is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_writer import column_slices
from headrace.client.writing.ordered_calls import BATCH_SLICE_EVENTS
from headrace.model.arguments import check_argument
from headrace.model.errors import InvalidRequestError, UnavailableError


def write_batch(accumulator: BatchAccumulator, payloads: list[bytes], keys: Sequence[str | None]) -> Ack:
    """Queues checked events in slices, and waits while the buffer is full."""
    ack = accumulator.new_ack()
    for first in range(0, len(payloads), BATCH_SLICE_EVENTS):
        last = first + BATCH_SLICE_EVENTS
        while not accumulator.add_batch(payloads[first:last], keys[first:last], ack):
            accumulator.wait_for_room()
    accumulator.settle(ack)
    return ack


def write_many(
    accumulator: BatchAccumulator,
    events: Any,
    routing_keys: Any,
    event_bytes_max: int,
    refuse: Callable[[int], InvalidRequestError],
) -> Ack:
    """Queues the events of columns, and waits while the buffer is full."""
    slices = column_slices(events, routing_keys, event_bytes_max, refuse)
    ack = accumulator.new_ack()
    for each in slices:
        while not each.add_to(accumulator, ack):
            accumulator.wait_for_room()
    accumulator.settle(ack)
    return ack


def flush(accumulator: BatchAccumulator, timeout_s: float | None) -> None:
    """Waits until all added events are acknowledged. Raises as `EventWriter.flush`."""
    check_argument("flush: timeout_s", timeout_s, float | None)
    # An integer of numpy is a number for us, but not for compiled code.
    if not accumulator.wait_until_empty(None if timeout_s is None else float(timeout_s)):
        raise UnavailableError(f"not all events were acknowledged within {timeout_s} s; the writer retries them")
    if accumulator.failure is not None:
        raise accumulator.failure

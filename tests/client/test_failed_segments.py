"""Each acknowledgement is done at last, also if a segment fails while others are replaced or the writer is closed."""

from __future__ import annotations

import threading
import time

from scripted_cluster import Cluster

from headrace import wire
from headrace.client.event_blocks import Ack

NO_ANSWER = wire.KeepAlive()
"""A reply that no client waits for."""


def _error_of(ack: Ack) -> str:
    """What the events have failed with, "" if they are stored."""
    with ack._changed:
        assert ack._changed.wait_for(lambda: ack.done, 10)
    return str(ack.exception() or "")


def test_no_event_moves_to_a_segment_that_has_failed(cluster: Cluster) -> None:
    """Events without a key may go to each segment, but nobody would send them there."""
    may_answer = threading.Event()

    def refuse(command: wire.WireCommand) -> wire.WireCommand | None:
        if not isinstance(command, wire.SetupAppend):
            return None
        if command.segment == cluster.name(0):
            return wire.OperationUnsupported(command.request_id, "SetupAppend")
        return None if may_answer.is_set() else NO_ANSWER

    cluster.refuse = refuse
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        acks = [writer.write_batch([b"%d" % number]) for number in range(64)]
        while writer._accumulator.failure is None:
            time.sleep(0.001)
        cluster.scale([1], [(0.5, 1.0)])
        may_answer.set()
        cluster.drop_connections()
        errors = [_error_of(ack) for ack in acks]
        assert {error for error in errors if error} == {"the segment store does not support SetupAppend"}
        assert len(cluster.all_events()) == errors.count("")
        writer._leave()

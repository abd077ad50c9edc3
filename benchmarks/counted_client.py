"""`python -m benchmarks.counted_client PORT EVENT_BYTES EVENTS batch|single`: a writer whose instructions are counted.

The writer is the one of `headrace.client`. It gets the address of the store from its arguments instead of a controller.
First it writes a batch of small events. So a run without events has the connection and the keys, too.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from benchmarks.counted_store import LOOPBACK, SEGMENT
from headrace.api.segments import EpochSegments, SegmentEndpoint, StartedSegment
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.http_api import HttpApi
from headrace.client.loop_thread import LoopThread
from headrace.client.synchronous.synchronous_bases import EventWriter
from headrace.client.trust import AsyncTrust
from headrace.client.writing.event_writer import WriterCore, WriterOptions

BATCH_EVENTS = 2000
FIRST_EVENT_BYTES = 100
KEYS = [f"key-{number}" for number in range(1000)]


class OneSegment:
    """The answers of a controller whose only stream has one segment, and whose stores want no tokens."""

    demands_tokens = False

    def __init__(self, port: int) -> None:
        self._port = port
        self.delegation_tokens = AsyncDelegationTokens(cast(HttpApi, self))
        self.trust = AsyncTrust(cast(HttpApi, self))

    async def epoch_segments(self, scope: str, stream: str) -> EpochSegments:
        return EpochSegments(0, (StartedSegment(0, 0.0, 1.0, SEGMENT, 0),), sealed=False)

    async def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        return SegmentEndpoint(LOOPBACK, self._port, "local", 0, 1)


@contextmanager
def opened_writer(port: int) -> Iterator[EventWriter]:
    """A writer to the segment of the store at this port, whose connection and keys are there."""
    thread = LoopThread()
    core = WriterCore(cast(AsyncAdmin, OneSegment(port)), "benchmark", "counted", WriterOptions())
    thread.run(core.open())
    with EventWriter(thread, core) as writer:
        writer.write_batch([bytes(FIRST_EVENT_BYTES)] * len(KEYS), KEYS)
        writer.flush()
        yield writer
    thread.close()


def write_batches(writer: EventWriter, event: bytes, count: int) -> None:
    """Write an event so many times, and return when all are acknowledged."""
    for first in range(0, count, BATCH_EVENTS):
        some = min(BATCH_EVENTS, count - first)
        writer.write_batch([event] * some, [KEYS[number % len(KEYS)] for number in range(some)])
    writer.flush()


def main(port: int, event_bytes: int, count: int, *, single: bool) -> None:
    event = os.urandom(event_bytes)
    gc.disable()
    with opened_writer(port) as writer:
        if single:
            for number in range(count):
                writer.write(event, KEYS[number % len(KEYS)])
            writer.flush()
        else:
            write_batches(writer, event, count)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), single=sys.argv[4] == "single")

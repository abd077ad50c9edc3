"""Segment stores are killed with -9 under a writer of the public client, and `headrace up` brings them back."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from typing import Any

from headrace.client import ScalingPolicy, connect

KEYS = 11
EVENTS = 30_000
KILL_AT = (6_000, 14_000, 22_000)
SCALE_AT = 10_000


def test_nothing_is_lost_doubled_or_reordered(running: dict[str, Any]):
    stores = [store["id"] for store in running["segmentStores"]]
    pids = {store["id"]: store["pid"] for store in running["segmentStores"]}
    with connect(running["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope("crash")
        headrace.admin.create_stream("crash", "events", scaling=ScalingPolicy.fixed(2))
        scale = threading.Thread(target=_split_first_segment, args=(headrace,))
        with headrace.writer("crash", "events") as writer:
            for number in range(EVENTS):
                writer.write(f"{number % KEYS} {number}".encode(), routing_key=str(number % KEYS))
                if number == SCALE_AT:
                    scale.start()
                if number in KILL_AT:
                    # Each store once by the process id it was started with; then the first acknowledgement after it
                    # proves that the store came back.
                    if stores:
                        os.kill(pids[stores.pop()], signal.SIGKILL)
                    writer.flush()
            writer.flush()
            assert writer.acknowledged_events == EVENTS
        scale.join()
        tail = headrace.admin.stream_cut("crash", "events", at="latest")
        read: dict[bytes, list[int]] = defaultdict(list)
        with headrace.reader("crash", "events", start="earliest", end=tail) as reader:
            for event in reader:
                key, position = event.event.split()
                read[key].append(int(position))
    assert read == {b"%d" % key: list(range(key, EVENTS, KEYS)) for key in range(KEYS)}
    assert not stores


def _split_first_segment(headrace: Any) -> None:
    first = headrace.admin.segments("crash", "events", at="latest")[0]
    low, high = first.key_range.low, first.key_range.high
    middle = (low + high) / 2
    headrace.admin.scale_stream("crash", "events", seal=[first.segment_id], ranges=[(low, middle), (middle, high)])

"""Reads stamped events at the tail of a stream and prints how long after its stamp each arrived.

`python -m benchmarks.tail_reader URL SCOPE STREAM EVENTS` prints `ready` when it reads, then one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from benchmarks.latencies import Latencies
from benchmarks.workloads import STAMP
from headrace.client import connect


def main(url: str, scope: str, stream: str, events: int) -> None:
    taken_ns: list[int] = []
    with connect(url) as headrace, headrace.reader(scope, stream, start="latest") as reader:
        reader.read_batch(timeout_s=0)
        print("ready", flush=True)
        while len(taken_ns) < events and (batch := reader.read_batch()) is not None:
            now_ns = time.monotonic_ns()
            stamps_ns = [STAMP.unpack_from(event)[0] for event in batch.events]
            taken_ns += [now_ns - stamp_ns for stamp_ns in stamps_ns if stamp_ns]  # without one: before the start
    print(json.dumps(asdict(Latencies.of_ns(taken_ns))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

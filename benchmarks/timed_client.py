"""`python -m benchmarks.timed_client PORT EVENT_BYTES EVENTS WARM_UP`: a writer that notes the times of its blocks.

It writes WARM_UP events and then EVENTS, as fast as they are taken. Its output is JSON: a list with a record of each
block of the latter.
"""

from __future__ import annotations

import gc
import json
import os
import sys

from benchmarks.counted_client import opened_writer, write_batches
from benchmarks.time_recorders import ClientRecorder


def main(port: int, event_bytes: int, count: int, warm_up: int) -> None:
    recorder = ClientRecorder()
    recorder.install()
    event = os.urandom(event_bytes)
    gc.disable()
    with opened_writer(port) as writer:
        write_batches(writer, event, warm_up)
        recorder.blocks.clear()
        write_batches(writer, event, count)
    print(json.dumps(recorder.blocks), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))

"""`python -m benchmarks.timed_store DIRECTORY`: a store that notes when appends pass its stations, on a real disk.

It is the store of `counted_store` otherwise. Its last line of output is JSON: a list with a record of each append.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop

from benchmarks.counted_store import serve
from benchmarks.time_recorders import StoreRecorder
from headrace.adapters.disk import DiskJournalDisk
from segmentstore_fargate.__main__ import SWITCH_INTERVAL_S


def main(directory: Path) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    recorder = StoreRecorder()
    recorder.install()
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(DiskJournalDisk(directory)))
    print(json.dumps(recorder.appends), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

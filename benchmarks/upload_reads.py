"""`python -m benchmarks.upload_reads`: the processor time of a PUT, with pieces of 16 KiB and with whole parts.

urllib3 asks the body for 16 KiB at a time. The body of the product answers with whole parts of the cache. Both send the
same object to an S3 double that keeps nothing, in turns, alone and next to a thread that uses the interpreter all the
time, as the event loop of a busy store does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from benchmarks.machine import machine_facts, versions
from benchmarks.results import Results, document
from benchmarks.s3_double import running_s3_double
from headrace.adapters.s3.chunk_storage import ObjectBody, S3ChunkStorage
from headrace.adapters.s3.client import s3_client

PART_BYTES: Final = 1 << 20
PARTS: Final = 32
CREDENTIALS: Final = {
    "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark",
}  # fmt: skip


class ShortReads(ObjectBody):
    """Returns no more than was asked for, as a file does."""

    def read(self, size: int = -1, /) -> bytes | memoryview:
        position = self.tell()
        piece = bytes(memoryview(super().read(size))[: size if size >= 0 else None])
        self.seek(position + len(piece))
        return piece


BODIES: Final = {"pieces of 16 KiB": ShortReads, "whole parts": ObjectBody}


@contextmanager
def _busy_thread(*, wanted: bool) -> Iterator[None]:
    stopping = not wanted

    def run() -> None:
        while not stopping:
            pass

    thread = threading.Thread(target=run, name="busy")
    thread.start()
    try:
        yield
    finally:
        stopping = True
        thread.join()


async def put_ms(storage: S3ChunkStorage, name: str) -> tuple[float, float]:
    """Time, and processor time of this process, in milliseconds."""
    parts = [memoryview(bytes(PART_BYTES))] * PARTS
    started_s, processor_s = time.perf_counter(), time.process_time()
    await storage.put(name, parts)
    return (time.perf_counter() - started_s) * 1e3, (time.process_time() - processor_s) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upload_reads", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds to take medians of")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for the results")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    with running_s3_double("free") as url, mock.patch.dict(os.environ, CREDENTIALS | {"AWS_ENDPOINT_URL_S3": url}):
        storage = S3ChunkStorage("benchmark", s3_client())
        for number in range(options.rounds):
            for busy in (False, True):
                for pieces, body in BODIES.items():
                    with (
                        mock.patch("headrace.adapters.s3.chunk_storage.ObjectBody", body),
                        _busy_thread(wanted=busy),
                    ):
                        taken_ms, processor_ms = asyncio.run(put_ms(storage, f"object-{number}"))
                    name = f"PUT of {PARTS} MiB in {pieces}{', next to a busy thread' if busy else ''}"
                    results.add(name, taken_ms, "ms")
                    if not busy:
                        results.add(f"{name}, processor", processor_ms, "ms")
        storage.close()
    settings = {"rounds": options.rounds, "part_bytes": PART_BYTES, "parts": PARTS}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "upload-reads.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

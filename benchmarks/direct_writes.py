"""`python -m benchmarks.direct_writes`: a log written around the page cache, against write and fdatasync.

Both write blocks over a file that was written before, each durable before the next, and take turns block by block, so
that both have the same neighbours. A direct write needs memory and lengths that are multiples of 4 KiB, so the block is
copied into an aligned buffer first, as a journal would have to. The buffered write takes the block from where it is.
Then both commit at a steady pace, with the length that the store has at 10,000 events/s of 1 KiB.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.latencies import Latencies
from benchmarks.machine import machine_facts, versions
from benchmarks.pacing import paced_ns
from benchmarks.results import Results, document

KIB: Final = 1024
MIB: Final = 1024 * KIB
FILE_BYTES: Final = 64 * MIB
ALIGNMENT: Final = 4 * KIB
BLOCKS: Final = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
PACED_BYTES: Final = 8 * KIB
PACED_PER_S: Final = 1_000


class BufferedFile:
    """pwrite and fdatasync."""

    name = "write + fdatasync"

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR)

    def commit(self, position: int, block: bytes) -> None:
        os.pwrite(self._file, block, position)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class DirectFile:
    """Copy into an aligned buffer, and write that with O_DIRECT and O_DSYNC."""

    name = "O_DIRECT + O_DSYNC"

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        self._mapped = mmap.mmap(-1, max(BLOCKS))  # begins with a page
        self._staging = memoryview(self._mapped)
        self._staging[:] = bytes(max(BLOCKS))

    def commit(self, position: int, block: bytes) -> None:
        self._staging[: len(block)] = block
        written_bytes = -(-len(block) // ALIGNMENT) * ALIGNMENT
        os.pwritev(self._file, [self._staging[:written_bytes]], position)

    def close(self) -> None:
        os.close(self._file)
        self._staging.release()
        self._mapped.close()


@dataclass(slots=True)
class Turns:
    """The commits of one file: how long each took, and the processor time of all."""

    file: BufferedFile | DirectFile
    taken_ns: list[int] = field(default_factory=list)
    processor_ns: int = 0

    def commit(self, block: bytes) -> None:
        position = len(self.taken_ns) * len(block) % FILE_BYTES
        started_ns, processor_ns = time.monotonic_ns(), time.thread_time_ns()
        self.file.commit(position, block)
        self.processor_ns += time.thread_time_ns() - processor_ns
        self.taken_ns.append(time.monotonic_ns() - started_ns)

    @property
    def processor_us(self) -> float:
        """Of one commit."""
        return self.processor_ns / len(self.taken_ns) / 1e3


def measure(results: Results, directory: Path, seconds: float) -> None:
    """One round: every length of blocks in a row, then commits at a steady pace."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        paths = [Path(scratch) / name for name in ("buffered", "direct")]
        for path in paths:
            _fill(path)
        files = BufferedFile(paths[0]), DirectFile(paths[1])
        try:
            for block_bytes in BLOCKS:
                block, turns = os.urandom(block_bytes), [Turns(file) for file in files]
                ends_ns = time.monotonic_ns() + seconds * 1e9
                while time.monotonic_ns() < ends_ns or not turns[0].taken_ns:
                    for each in turns:
                        each.commit(block)
                _add(results, f"{block_bytes // KIB} KiB blocks", turns)
            block, turns = os.urandom(PACED_BYTES), [Turns(file) for file in files]
            for number, _ in enumerate(paced_ns(PACED_PER_S, max(2, int(PACED_PER_S * seconds)))):
                turns[number % 2].commit(block)
            _add(results, f"{PACED_BYTES // KIB} KiB {PACED_PER_S:,} times a second in turns", turns)
        finally:
            for file in files:
                file.close()


def _fill(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(0, FILE_BYTES, MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


def _add(results: Results, name: str, turns: Iterable[Turns]) -> None:
    beside = None
    for each in turns:
        latencies = Latencies.of_ns(each.taken_ns)
        rows = (
            ("p50", latencies.p50_ms, "ms"),
            ("p99", latencies.p99_ms, "ms"),
            ("processor", each.processor_us, "us"),
        )
        for part, value, unit in rows:
            results.add(f"{each.file.name}, {name}, {part}", value, unit, beside=beside and f"{beside}, {name}, {part}")
        beside = each.file.name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.direct_writes", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians of")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    for _ in range(options.rounds):
        measure(results, options.output, options.seconds)
    settings = {"rounds": options.rounds, "seconds": options.seconds, "file_bytes": FILE_BYTES}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "direct-writes.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

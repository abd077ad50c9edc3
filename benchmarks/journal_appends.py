"""What an append costs in the journal: entries of several sizes, on a disk that costs nothing and on a real one.

    python -m benchmarks.journal_appends [--rounds N] [--directory DIR]

The disk that costs nothing shows the processor time of queue, header, checksum and index, which hardly depends on the
load of the machine. `zeroed MB` is what is written into new files while the log grows and shrinks, after it has done so
once.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.ports.journal_disk import JournalDisk, JournalFile
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedger, OneCopyLedgers

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY_SIZES: Final = (178, 1 << 10, 64 << 10, 1 << 20)
"""The first is a frame with one append of 100 bytes."""

BYTES_PER_ROUND: Final = 64 << 20
ENTRIES_PER_ROUND_MAX: Final = 20_000
IN_FLIGHT: Final = 32
BACKLOG_FILES: Final = 16
BACKLOG_FILE_BYTES: Final = 4 << 20
BACKLOGS: Final = 4
FILE_BYTES: Final = 64 << 20


class FreeFile:
    """A file that forgets what is written to it, and needs no time for it."""

    def __init__(self, file: JournalFile) -> None:
        self.size_bytes = file.size_bytes
        self.read = file.read
        self.close = file.close

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Keep nothing."""

    def sync(self) -> None:
        """Nothing has to be made durable."""

    def write_durably(self, position: int, parts: Sequence[Buffer]) -> None:
        """Keep nothing."""


class FreeDisk:
    """A disk of such files, except for the journal's identity."""

    def __init__(self) -> None:
        disk = self._disk = MemoryJournalDisk()
        self.names, self.create, self.rename = disk.names, disk.create, disk.rename
        self.remove, self.space = disk.remove, disk.space

    def open(self, name: str) -> JournalFile:
        file = self._disk.open(name)
        return file if "id" in name else FreeFile(file)


class CountingDisk(DiskJournalDisk):
    """Counts the bytes of the files that it creates."""

    zeroed_bytes = 0

    def create(self, name: str, size_bytes: int) -> None:
        self.zeroed_bytes += size_bytes
        super().create(name, size_bytes)


class Load:
    """Appends to one container, with a bounded number of entries in flight."""

    def __init__(self, disk: JournalDisk, file_bytes: int) -> None:
        self.journal = Journal(disk, lambda: secrets.randbits(64), _call, file_bytes=file_bytes)
        self.journal.start()
        self.ledger: OneCopyLedger = OneCopyLedgers(self.journal).open(0, 1)
        self._room = threading.Semaphore(IN_FLIGHT)

    def append(self, data: memoryview, count: int) -> None:
        """Return when all are durable. Then nothing of the log is needed."""
        for _ in range(count):
            self._room.acquire()
            self.ledger.append([data], self._done)
        for _ in range(IN_FLIGHT):
            self._room.acquire()
        self._room.release(IN_FLIGHT)
        self.ledger.truncate(self.ledger.next_entry)

    def _done(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._room.release()


def processor_us_per_entry(size_bytes: int, entries: int) -> float:
    load = Load(FreeDisk(), FILE_BYTES)
    data = memoryview(secrets.token_bytes(size_bytes))
    load.append(data, entries // 10)
    started_s = time.process_time()
    load.append(data, entries)
    taken_s = time.process_time() - started_s
    load.journal.close()
    return taken_s / entries * 1e6


def entries_per_s(directory: Path, size_bytes: int, entries: int) -> float:
    with tempfile.TemporaryDirectory(dir=directory) as path:
        disk = DiskJournalDisk(Path(path))
        load = Load(disk, FILE_BYTES)
        data = memoryview(secrets.token_bytes(size_bytes))
        load.append(data, entries // 10)
        started_s = time.perf_counter()
        load.append(data, entries)
        taken_s = time.perf_counter() - started_s
        load.journal.close()
        disk.close()
    return entries / taken_s


def zeroed_mb(directory: Path) -> float:
    """What is zeroed while the log grows by some files and shrinks again, several times."""
    with tempfile.TemporaryDirectory(dir=directory) as path:
        disk = CountingDisk(Path(path))
        load = Load(disk, BACKLOG_FILE_BYTES)
        data = memoryview(secrets.token_bytes(64 << 10))
        count = BACKLOG_FILES * BACKLOG_FILE_BYTES // len(data)
        load.append(data, count)
        before = disk.zeroed_bytes
        for _ in range(BACKLOGS):
            load.append(data, count)
        load.journal.close()
        disk.close()
    return (disk.zeroed_bytes - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.journal_appends", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path("build"))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    for size_bytes in ENTRY_SIZES:
        entries = min(ENTRIES_PER_ROUND_MAX, BYTES_PER_ROUND // size_bytes)
        processor_us: list[float] = []
        rates: list[float] = []
        for _ in range(options.rounds):
            processor_us.append(processor_us_per_entry(size_bytes, entries))
            rates.append(entries_per_s(options.directory, size_bytes, entries))
        mb_per_s = statistics.median(rates) * size_bytes / 1e6
        print(
            f"{size_bytes:>8} B: {min(processor_us):8.1f} us of processor at least, "
            f"{statistics.median(rates):9.0f} entries/s, {mb_per_s:7.1f} MB/s"
        )
    print(f"zeroed MB: {zeroed_mb(options.directory):.0f}")


def _call(callback: Callable[[], None]) -> None:
    callback()


if __name__ == "__main__":
    main()

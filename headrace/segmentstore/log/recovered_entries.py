"""The entries of one container that a scan found in the journal, in the order of their numbers.

In the files entries have this order too, except for copies. A copied entry follows later ones, and the scan finds it
twice if the older file was not freed before the crash.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from headrace.model.errors import CorruptError
from headrace.segmentstore.log import journal_format
from headrace.segmentstore.log.journal_files import LogFile
from headrace.segmentstore.log.journal_format import RECORD_HEADER_BYTES, Record
from headrace.segmentstore.log.journal_scan import FileWindow

if TYPE_CHECKING:
    from collections.abc import Iterable


class EntryRun:
    """Entries of one container and epoch with consecutive numbers, in one file. Each costs a few bytes of memory."""

    __slots__ = ("epoch", "first_entry", "lengths", "log_file", "positions")

    def __init__(self, log_file: LogFile, epoch: int, first_entry: int) -> None:
        self.log_file = log_file
        self.epoch = epoch
        self.first_entry = first_entry
        self.positions = array("Q")  # of the payloads
        self.lengths = array("I")

    @property
    def next_entry(self) -> int:
        return self.first_entry + len(self.positions)

    def takes(self, log_file: LogFile, epoch: int, entry: int) -> bool:
        """Whether this entry is the next one of the run."""
        return self.log_file is log_file and self.epoch == epoch and self.next_entry == entry

    def add(self, position: int, length: int) -> None:
        self.positions.append(position)
        self.lengths.append(length)


class RunsOfEntries:
    """Groups entries into runs."""

    def __init__(self) -> None:
        self.runs: list[EntryRun] = []

    def add(self, log_file: LogFile, epoch: int, entry: int, position: int, length: int) -> None:
        if not self.runs or not self.runs[-1].takes(log_file, epoch, entry):
            self.runs.append(EntryRun(log_file, epoch, entry))
        self.runs[-1].add(position, length)


class _RunPart(NamedTuple):
    """The entries of a run from the index `first` on."""

    run: EntryRun
    first: int


class RecoveredEntries:
    """The entries of one container; `epoch` is that of the newest one.

    Any thread may read, also while another one calls `replace`.
    """

    def __init__(self, container: int) -> None:
        self.container = container
        self.next_entry = 0
        self.epoch = 0
        self.truncated_before = 0
        self._originals = RunsOfEntries()
        self._copies = RunsOfEntries()
        self._replaced: Sequence[EntryRun] | None = None
        self._lock = Lock()
        self._readings: WeakSet[Iterator[tuple[int, memoryview]]] = WeakSet()

    def add(self, log_file: LogFile, record: Record) -> None:
        """Note a record. Call it in the order of the files. Raises CorruptError if entries before it are missing."""
        header = record.header
        runs = self._copies if header.copied else self._originals
        if not header.copied and runs.runs and header.entry != runs.runs[-1].next_entry:
            raise CorruptError(
                f"journal file {log_file.name} has entry {header.entry} of container {self.container} next, "
                f"expected {runs.runs[-1].next_entry}: entries are missing"
            )
        runs.add(log_file, header.epoch, header.entry, record.position, header.length)
        # A copy may follow newer entries, so these values must not decrease.
        self.next_entry = max(self.next_entry, header.entry + 1)
        self.epoch = max(self.epoch, header.epoch)
        self.truncated_before = max(self.truncated_before, header.truncated_before)

    def check(self) -> None:
        """Raises CorruptError if a needed entry is missing, or if two different entries have the same number."""
        for _ in self._parts(self._runs(), self.truncated_before):
            continue

    def lengths(self) -> Iterator[tuple[int, int]]:
        """The number and length of each entry from the truncation point on."""
        for run, first in self._parts(self._runs(), self.truncated_before):
            for index in range(first, len(run.lengths)):
                yield run.first_entry + index, run.lengths[index]

    def read(self, first_entry: int) -> Iterator[tuple[int, memoryview]]:
        """The number and payload of each entry, from `first_entry` or the truncation point on. Blocks while it reads.

        Raises:
            CorruptError: an entry has changed on disk since the file was scanned.
        """
        with self._lock:
            reading = self._read(self._runs(), max(first_entry, self.truncated_before))
            self._readings.add(reading)
        return reading

    @property
    def is_read(self) -> bool:
        """Whether a `read` has not ended. The files that it reads must stay until then."""
        with self._lock:
            return len(self._readings) > 0

    def replace(self, log_file: LogFile, runs: Iterable[EntryRun]) -> None:
        """Use `runs` instead of those in `log_file` for reads that begin from now on.

        All needed entries of `log_file` are durable in `runs` too.
        """
        with self._lock:
            self._replaced = [*(run for run in self._runs() if run.log_file is not log_file), *runs]

    def _runs(self) -> Sequence[EntryRun]:
        if self._replaced is not None:
            return self._replaced
        return [*self._originals.runs, *self._copies.runs]

    def _parts(self, runs: Sequence[EntryRun], first_entry: int) -> Iterator[_RunPart]:
        """The parts of runs that hold the entries from `first_entry` on, each entry once and in order."""
        entry = first_entry
        before: EntryRun | None = None
        for run in sorted(runs, key=lambda run: run.first_entry):
            if before is not None and run.first_entry < before.next_entry:
                self._check_same(before, run)
            if run.next_entry <= entry:
                continue
            if run.first_entry > entry:
                raise self._missing(entry, run.first_entry)
            yield _RunPart(run, entry - run.first_entry)
            entry, before = run.next_entry, run
        if entry < self.next_entry:
            raise self._missing(entry, self.next_entry)

    def _check_same(self, one: EntryRun, other: EntryRun) -> None:
        """Raise CorruptError unless both runs have the same epoch and the common entries the same lengths."""
        skipped = other.first_entry - one.first_entry
        both = min(len(one.lengths) - skipped, len(other.lengths))
        if one.epoch != other.epoch or one.lengths[skipped : skipped + both] != other.lengths[:both]:
            raise CorruptError(
                f"the entries of container {self.container} from {other.first_entry} on are in {one.log_file.name} and "
                f"in {other.log_file.name}, and differ"
            )

    def _missing(self, entry: int, found: int) -> CorruptError:
        return CorruptError(
            f"the log of container {self.container} is needed from entry {self.truncated_before} on, but its entries "
            f"from {entry} to {found - 1} are not there: older journal files are missing"
        )

    def _read(self, runs: Sequence[EntryRun], first_entry: int) -> Iterator[tuple[int, memoryview]]:
        window: FileWindow | None = None
        log_file: LogFile | None = None
        for run, first in self._parts(runs, first_entry):
            if window is None or run.log_file is not log_file:
                log_file, window = run.log_file, FileWindow(run.log_file.file)
            for index in range(first, len(run.positions)):
                entry = run.first_entry + index
                yield entry, self._checked(run, window, entry, run.positions[index], run.lengths[index])

    def _checked(self, run: EntryRun, window: FileWindow, entry: int, position: int, length: int) -> memoryview:
        """The payload at this position, checked again: the disk may return other bytes than during the scan."""
        record = window.view(position - RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + length)
        header = journal_format.decode_record_header(record, run.log_file.salt)
        if (
            header is None
            or (header.container, header.entry, header.length) != (self.container, entry, length)
            or not journal_format.is_whole(record)
        ):
            raise CorruptError(
                f"journal file {run.log_file.name} is damaged at {position}: entry {entry} of container "
                f"{self.container} is not what the scan of the file found",
                details={"file": run.log_file.name, "position": position},
            )
        return record[RECORD_HEADER_BYTES:]

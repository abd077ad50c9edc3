"""Copies the entries of the journal's oldest file that are still needed into the newest file.

The journal frees files oldest first. Without copies, one container that needs a few bytes of an old file would keep
every file written since on the volume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final

from headrace.ports.ledger import Done
from headrace.segmentstore.log.journal_files import LogFile, Stretch
from headrace.segmentstore.log.journal_scan import RecordScan
from headrace.segmentstore.log.recovered_entries import EntryRun, RunsOfEntries

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

PORTION_BYTES: Final = 1 << 20
"""Bytes that are written and synced at once. A client's commit that arrives meanwhile waits for one portion at most."""


@dataclass(slots=True)
class PendingEntry:
    """An entry that is not on the disk yet. `copy` is the file copy that it belongs to; None for a client's entry."""

    container: int
    epoch: int
    entry: int
    truncated_before: int
    parts: Sequence[Buffer]
    length: int
    done: Done
    copy: FileCopy | None = None


class FileCopy:
    """Copies one file. `run` has its own thread and hands portions to the journal's thread, one at a time.

    `truncated_before` has the truncation points at the start of the copy. Entries may be truncated while the copy
    runs, but a truncated entry never becomes needed again.
    """

    def __init__(
        self, log_file: LogFile, needed: Mapping[int, list[Stretch]], truncated_before: Mapping[int, int]
    ) -> None:
        self.log_file = log_file
        self.ended = False
        self.is_complete = False
        self._ranges = _ranges(needed)
        self._truncated_before = dict(truncated_before)
        self._portion: list[PendingEntry] | None = None
        self._written = Event()
        self._stopped = False
        self._runs: dict[int, RunsOfEntries] = {}

    def run(self, wake: Callable[[], None]) -> None:
        """Read the file and hand over each portion; `wake` tells the journal's thread that there is work to do."""
        try:
            for portion in self._portions():
                self._portion = portion
                wake()
                self._written.wait()
                self._written.clear()
                if self._stopped:
                    return
            self.is_complete = True
        except Exception as error:  # noqa: BLE001 - the file keeps its entries: it is only not freed
            _log.error("event=journal_copy_failed file=%r error=%r", self.log_file.name, error)
        finally:
            self.ended = True
            wake()

    def take_portion(self, truncated_before: Mapping[int, int]) -> list[PendingEntry] | None:
        """The entries to write now, without those truncated meanwhile; None if no portion has been read."""
        portion, self._portion = self._portion, None
        if portion is None:
            return None
        needed = [each for each in portion if each.entry >= truncated_before.get(each.container, 0)]
        for each in needed:
            each.truncated_before = truncated_before.get(each.container, 0)
        return needed

    def portion_written(self) -> None:
        """Report that the portion that was taken is durable."""
        self._written.set()

    def stop(self) -> None:
        """End `run`, because the journal's thread has ended and no portion will be written."""
        self._stopped = True
        self._written.set()

    def note_copy(self, log_file: LogFile, copied: PendingEntry, position: int) -> None:
        """Note that a copied entry is durable in this file."""
        runs = self._runs.setdefault(copied.container, RunsOfEntries())
        runs.add(log_file, copied.epoch, copied.entry, position, copied.length)

    def runs_of(self, container: int) -> list[EntryRun]:
        """The positions of the copies of a container's entries."""
        runs = self._runs.get(container)
        return runs.runs if runs is not None else []

    def _portions(self) -> Iterator[list[PendingEntry]]:
        portion: list[PendingEntry] = []
        portion_bytes = 0
        for start, end in self._ranges:
            scan = RecordScan(self.log_file.file, self.log_file.salt, end, self.log_file.name, start)
            for record in scan:
                header = record.header
                if header.entry < self._truncated_before.get(header.container, 0):
                    continue
                parts = (scan.payload(record),)
                portion.append(
                    PendingEntry(
                        header.container, header.epoch, header.entry, 0, parts, header.length, _unwatched, self
                    )
                )
                portion_bytes += header.length
                if portion_bytes >= PORTION_BYTES:
                    yield portion
                    portion, portion_bytes = [], 0
        if portion:
            yield portion


def _ranges(needed: Mapping[int, list[Stretch]]) -> list[tuple[int, int]]:
    """The parts of the file that hold the stretches, in order and without overlap."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted((stretch.start, stretch.end) for each in needed.values() for stretch in each):
        if ranges and start < ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges


def _unwatched(_error: Exception | None) -> None:
    """Ignore the result: no caller waits for a copy, and `note_copy` reports when it is durable."""

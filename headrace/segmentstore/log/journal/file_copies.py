"""Copies the entries of the journal's oldest file that are still needed into the newest file.

The journal frees files oldest first. Without copies, one container that needs a few bytes of an old file would keep
every file written since on the volume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from headrace.codec.log_record_header import RecordKind
from headrace.segmentstore.log.journal.journal_files import LogFile, Pin, Stretch
from headrace.segmentstore.log.journal.journal_format import RecordHeader
from headrace.segmentstore.log.journal.journal_index import JournalIndex
from headrace.segmentstore.log.journal.journal_scan import RecordScan
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore

PORTION_BYTES: Final = 1 << 20
"""Bytes that are written and synced at once. A client's commit that arrives meanwhile waits for one portion at most."""

Portion = list[tuple[PendingRecord, RecordHeader, int]]
"""Copies to write, each with the header and the position of the payload of its original."""


class FileCopy:
    """The copy of one file, whose `needed` parts are read again.

    `portions` may run in any thread. An entry may be truncated or dropped while the copy runs, but it never becomes
    needed again.
    """

    def __init__(self, log_file: LogFile, needed: Mapping[int, list[Stretch]], index: JournalIndex) -> None:
        self.log_file = log_file
        self._ranges = _ranges(needed)
        self._index = index
        with index.lock:
            self._pin: Pin | None = Pin([log_file])

    def unpin(self) -> None:
        """Let the file be used again, because it is not read any more."""
        self._pin = None

    def portions(self) -> Iterator[Portion]:
        """Read the needed entries. Blocks.

        Raises:
            CorruptError: the file is damaged.
            OSError: the file cannot be read.
        """
        portion: Portion = []
        portion_bytes = 0
        log_file = self.log_file
        for start, end in self._ranges:
            scan = RecordScan(log_file.file, log_file.layout, end, log_file.name, start)
            for record in scan:
                if not self._is_needed(record.header, record.position):
                    continue
                portion.append((_copied(record.header, scan.payload(record)), record.header, record.position))
                portion_bytes += record.header.length
                if portion_bytes >= PORTION_BYTES:
                    yield portion
                    portion, portion_bytes = [], 0
        if portion:
            yield portion

    def still_needed(self, portion: Portion, truncated_before: Mapping[int, int]) -> list[PendingRecord]:
        """The copies to write now, without those truncated or dropped since they were read.

        They carry the current truncation points, because the files that have these may be freed first.
        """
        needed = [copied for copied, header, position in portion if self._is_needed(header, position)]
        for each in needed:
            each.truncated_before = truncated_before.get(each.container, 0)
        return needed

    def _is_needed(self, header: RecordHeader, position: int) -> bool:
        if header.kind is not RecordKind.ENTRY:
            return False
        with self._index.lock:
            return self._index.is_at(header, self.log_file, position)


def _copied(header: RecordHeader, payload: memoryview) -> PendingRecord:
    """The payload keeps the checksum that its owner made, so that damage on the way is found."""
    return PendingRecord(
        RecordKind.ENTRY,
        header.container,
        header.epoch,
        header.writer_epoch,
        header.entry,
        0,
        header.acknowledged_before,
        (payload,),
        header.length,
        ignore,
        payload_checksum=header.payload_checksum,
        copied=True,
        codec=header.codec,
    )


def _ranges(needed: Mapping[int, list[Stretch]]) -> list[tuple[int, int]]:
    """The parts of the file that hold the stretches, in order and without overlap."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted((stretch.start, stretch.end) for each in needed.values() for stretch in each):
        if ranges and start < ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges

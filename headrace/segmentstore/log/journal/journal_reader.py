"""Reads entries of a journal while it is written.

A reading pins the files that it needs: the journal does not use them again before the reading has ended. It sees the
entries that were durable when it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headrace.codec import log_record_header
from headrace.codec.log_record_header import Codec
from headrace.codec.payload_compression import decompress_payload
from headrace.codec.replica_messages import ENTRIES_PER_ANSWER_MAX, Entry
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal import journal_scan
from headrace.segmentstore.log.journal.entry_runs import EntryPart
from headrace.segmentstore.log.journal.journal_files import LogFile, Pin
from headrace.segmentstore.log.journal.journal_format import RecordHeader
from headrace.segmentstore.log.journal.journal_index import JournalIndex
from headrace.segmentstore.log.journal.journal_scan import FileWindow

SKIPPED_BYTES_MAX: Final = 64 << 10
"""Records of other containers between two of the wanted ones are read with them up to this size: that costs less than
another read."""


class StoredEntry(NamedTuple):
    """An entry as it is stored. `payload` is valid as long as it is referenced."""

    header: RecordHeader
    payload: memoryview

    def as_sent(self) -> Entry:
        """The entry as owners and replicas send it, with memory of its own: a view keeps all that was read with it."""
        header = self.header
        return Entry(
            log_record_header.RecordHeader(
                header.kind,
                header.container,
                header.epoch,
                header.writer_epoch,
                header.entry,
                header.truncated_before,
                header.acknowledged_before,
                header.length,
                header.payload_checksum,
                header.codec,
            ),
            bytes(self.payload),
        )

    def content(self) -> memoryview:
        """What the owner appended: the payload, decompressed if it is compressed. Raises CorruptError."""
        if self.header.codec is Codec.PLAIN:
            return self.payload
        return memoryview(decompress_payload(self.payload))


class JournalReader:
    """Any thread may read. An iterator that is not used any more must be dropped, since it pins files."""

    def __init__(self, index: JournalIndex) -> None:
        self._index = index

    def chain(self, container: int, first_entry: int = 0) -> Iterator[StoredEntry]:
        """Every entry of all ledgers of a container from `first_entry` or the truncation point on. Blocks as it reads.

        Raises:
            CorruptError: entries are missing, or an entry has changed on disk.
        """
        parts, pin = self._index.chain(container, first_entry)
        return _read(container, parts, pin)

    def ledger(
        self, container: int, epoch: int, first_entry: int, end_entry: int, bytes_max: int | None = None
    ) -> Iterator[StoredEntry]:
        """The entries of one ledger in this range that the journal holds, in order. Blocks as it reads.

        If they have more than `bytes_max` bytes with their headers, only the first ones, but at least one.

        Raises:
            CorruptError: an entry has changed on disk.
        """
        parts, pin = self._index.ledger(container, epoch, first_entry, end_entry)
        return _read(container, parts if bytes_max is None else _first_bytes(parts, bytes_max), pin)

    def entries_to_send(self, container: int, epoch: int, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries of one ledger from `first` on up to the first that is not here, as many as one answer may have.

        They have at most `bytes_max` bytes with their headers, or there is one. Blocks.

        Raises:
            CorruptError: an entry has changed on disk.
            OSError: it cannot be read.
        """
        entries: list[Entry] = []
        for stored in self.ledger(container, epoch, first, min(last + 1, first + ENTRIES_PER_ANSWER_MAX), bytes_max):
            if stored.header.entry != first + len(entries):
                break
            entries.append(stored.as_sent())
        return entries


def _first_bytes(parts: Sequence[EntryPart], bytes_max: int) -> Sequence[EntryPart]:
    """The first entries that have, with their headers, no more bytes, but at least one."""
    fitting: list[EntryPart] = []
    room = bytes_max
    for part in parts:
        header_bytes = part.log_file.layout.header_bytes
        for entry, _, length in part.places():
            room -= header_bytes + length
            if room < 0 and (fitting or entry > part.first_entry):
                return [*fitting, part._replace(end_entry=entry)]
        fitting.append(part)
    return fitting


def _bytes_ahead(part: EntryPart, entry: int) -> int:
    """How many bytes to read at once, from the record of an entry on.

    In a file that many containers share, what follows may be mostly records of others.
    """
    piece, header_bytes = part.piece, part.log_file.layout.header_bytes
    first = entry - piece.first_entry
    start = end = piece.positions[first] - header_bytes
    for index in range(first, part.end_entry - piece.first_entry):
        position = piece.positions[index]
        after = position + piece.lengths[index]
        if position - header_bytes - end > SKIPPED_BYTES_MAX or after - start > journal_scan.WINDOW_BYTES:
            break
        end = after
    return end - start


def _read(container: int, parts: Sequence[EntryPart], _pin: Pin) -> Iterator[StoredEntry]:
    """The files stay as long as this iterator keeps `_pin`."""
    window: FileWindow | None = None
    log_file: LogFile | None = None
    for part in parts:
        if window is None or part.log_file is not log_file:
            log_file, window = part.log_file, FileWindow(part.log_file.file)
        layout, header_bytes = log_file.layout, log_file.layout.header_bytes
        for entry, position, length in part.places():
            # Checked again: the disk may return other bytes than during the scan or the commit.
            start, record_bytes = position - header_bytes, header_bytes + length
            ahead = 0 if window.has(start, record_bytes) else _bytes_ahead(part, entry)
            record = window.view(start, record_bytes, ahead)
            header = layout.decode(record[:header_bytes]) if len(record) >= header_bytes else None
            if header is not None and _identity(header) == (container, part.epoch, entry, length):
                header = layout.checked(header, record)
            else:
                header = None
            if header is None:
                raise CorruptError(
                    f"journal file {log_file.name} is damaged at {position}: entry {entry} of container {container} is "
                    "not what was written there",
                    details={"file": log_file.name, "position": position},
                )
            yield StoredEntry(header, record[header_bytes:])


def _identity(header: RecordHeader) -> tuple[int, int, int, int]:
    return header.container, header.epoch, header.entry, header.length

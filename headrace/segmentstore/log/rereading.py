"""Finds the entries of some containers in the files of a running journal again, in one pass for all of them.

The containers accept no entries meanwhile, but a file copy may move existing ones. So a file is not freed before the
pass has read it, and a file copy that ends during the pass reports the positions of its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from headrace.model.errors import CorruptError, UnavailableError
from headrace.segmentstore.log.file_copies import FileCopy
from headrace.segmentstore.log.journal_files import LogFile
from headrace.segmentstore.log.journal_scan import RecordScan
from headrace.segmentstore.log.recovered_entries import RecoveredEntries

Found = dict[int, RecoveredEntries | CorruptError]
"""The result by container. A container without entries is left out; one with inconsistent entries has an error."""


class Rereading:
    """One pass over `files`, oldest first. `check_open` raises once the journal is being closed.

    `scan` runs in the caller's thread. All other methods are called under the journal's lock for readings.
    """

    def __init__(self, files: Iterable[LogFile], containers: Collection[int], check_open: Callable[[], None]) -> None:
        # The needed entries of a copied file are in a newer file too.
        self._files = tuple(each for each in files if not each.copied)
        self._read = 0  # files that the pass has read to the end
        self._containers = frozenset(containers)
        self._check_open = check_open
        self._found: Found = {}
        self._copies: list[FileCopy] = []

    def needs(self, log_file: LogFile) -> bool:
        """Whether the pass has yet to read this file, or is reading it."""
        return log_file in self._files[self._read :]

    def note_copied(self, copy: FileCopy) -> None:
        """Note a file copy that ended during the pass: the needed entries of its file are durable in newer files."""
        self._copies.append(copy)

    def scan(self) -> None:
        """Read the files. Blocks.

        Raises:
            CorruptError: records that were durable are damaged.
            UnavailableError: a file cannot be read, or the journal is being closed.
        """
        for log_file in self._files:
            try:
                self._scan_file(log_file)
            except OSError as error:
                raise UnavailableError(f"journal file {log_file.name} cannot be read: {error}") from error
            self._read += 1

    def found(self) -> Found:
        """The entries that the pass found, at their current positions."""
        for copy in self._copies:
            for container, entries in self._found.items():
                if isinstance(entries, RecoveredEntries):
                    entries.replace(copy.log_file, copy.runs_of(container))
        return self._found

    def _scan_file(self, log_file: LogFile) -> None:
        for record in RecordScan(log_file.file, log_file.salt, log_file.end, log_file.name):
            self._check_open()
            container = record.header.container
            if container not in self._containers:
                continue
            entries = self._found.setdefault(container, RecoveredEntries(container))
            if isinstance(entries, RecoveredEntries):
                try:
                    entries.add(log_file, record)
                except CorruptError as error:  # affects only this container
                    self._found[container] = error

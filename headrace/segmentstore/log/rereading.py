"""Finds the entries of some containers in the files of a running journal again, in one pass for all of them.

The containers take no entries meanwhile, but the copying may move theirs. So a file stays until the pass has come to
it, and a copying that ends during the pass says where its copies are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from headrace.model.errors import CorruptError, UnavailableError
from headrace.segmentstore.log.file_copies import FileCopy
from headrace.segmentstore.log.journal_files import LogFile
from headrace.segmentstore.log.journal_scan import RecordScan
from headrace.segmentstore.log.recovered_entries import RecoveredEntries

Found = dict[int, RecoveredEntries | CorruptError]
"""By container, without those that have no entries; an error for a container whose entries contradict each other."""


class Rereading:
    """One pass over `files`, oldest first. `check_open` raises once the journal is being closed.

    `scan` has a thread of its own. Everything else is called under the journal's lock for readings.
    """

    def __init__(self, files: Iterable[LogFile], containers: Collection[int], check_open: Callable[[], None]) -> None:
        # What is needed of a file that was copied before is in a newer one as well.
        self._files = tuple(each for each in files if not each.copied)
        self._read = 0  # files that the pass has ended with
        self._containers = frozenset(containers)
        self._check_open = check_open
        self._found: Found = {}
        self._copies: list[FileCopy] = []

    def needs(self, log_file: LogFile) -> bool:
        """Whether the pass has not ended with this file."""
        return log_file in self._files[self._read :]

    def note_copied(self, copy: FileCopy) -> None:
        """A copying has ended during the pass: what was needed of its file is durable elsewhere."""
        self._copies.append(copy)

    def scan(self) -> None:
        """Read the files; blocks.

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
        """The entries, where they are now."""
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
                except CorruptError as error:  # the other containers are not concerned
                    self._found[container] = error

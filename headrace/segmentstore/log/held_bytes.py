"""The number of bytes of a log between its truncation point and its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from headrace.segmentstore.log.journal.entry_runs import EntryPart

_MARK_EVERY_BYTES: Final = 1 << 20

_ENTRIES_COUNTED_AT_ONCE: Final = 256


class HeldBytes:
    """Counts entries with their headers. After a truncation the sum is too large by less than one mark."""

    def __init__(self) -> None:
        self.total = 0
        self._bytes_before: list[tuple[int, int]] = []  # (entry, bytes held before it), sparse

    def count(self, entry: int, stored_bytes: int) -> None:
        """Count the next entry, or several that begin with it."""
        if not self._bytes_before or self.total - self._bytes_before[-1][1] >= _MARK_EVERY_BYTES:
            self._bytes_before.append((entry, self.total))
        self.total += stored_bytes

    def count_parts(self, parts: Iterable[EntryPart]) -> None:
        """Count what the journal holds, in the order of the entries."""
        for part in parts:
            lengths, header_bytes = part.lengths(), part.log_file.layout.header_bytes
            for first in range(0, len(lengths), _ENTRIES_COUNTED_AT_ONCE):
                counted = lengths[first : first + _ENTRIES_COUNTED_AT_ONCE]
                self.count(part.first_entry + first, sum(counted) + len(counted) * header_bytes)

    def behind(self, entry: int) -> int:
        """About the bytes of the entries behind this one; too many by less than one mark."""
        marks = self._bytes_before
        index = bisect_right(marks, entry + 1, key=lambda mark: mark[0]) - 1
        return self.total - (marks[index][1] if index >= 0 else 0)

    def truncate(self, before_entry: int) -> None:
        """The entries before this one are not held any more."""
        kept = [(entry, before) for entry, before in self._bytes_before if entry >= before_entry]
        freed = kept[0][1] if kept else self.total
        self.total -= freed
        self._bytes_before = [(entry, before - freed) for entry, before in kept]

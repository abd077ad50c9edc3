"""How many bytes of a ledger follow an entry, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

UNKNOWN_LAG: Final = 1 << 62
"""The lag of a replica that lacks entries of an earlier ledger, whose sizes this owner never learned."""


class EntrySizes:
    """Marks of (entry, bytes appended before it), one for each `mark_bytes`: the lag is exact up to that."""

    def __init__(self, first: int, mark_bytes: int) -> None:
        self._entries = [first]
        self._bytes = [0]
        self._mark_bytes = mark_bytes
        self.total = 0
        self._next = first

    def append(self, entry: int, size: int) -> None:
        """Account for the next entry."""
        if self.total - self._bytes[-1] >= self._mark_bytes:
            self._entries.append(entry)
            self._bytes.append(self.total)
        self.total += size
        self._next = entry + 1

    def lag(self, last: int, end: int | None = None) -> int:
        """About the bytes of the entries behind `last`, up to before `end`; wrong by less than one mark."""
        if last + 1 < self._entries[0]:
            return UNKNOWN_LAG
        if last + 1 >= self._next:
            return 0
        up_to = self.total if end is None or end >= self._next else self._before(end)
        return max(0, up_to - self._before(last + 1))

    def truncate(self, truncated_before: int) -> None:
        """Forget marks that nothing before the truncation point needs."""
        keep = bisect_right(self._entries, truncated_before) - 1
        if keep > 0:
            del self._entries[:keep]
            del self._bytes[:keep]

    def _before(self, entry: int) -> int:
        """The bytes before the mark at or before an entry."""
        return self._bytes[max(0, bisect_right(self._entries, entry) - 1)]

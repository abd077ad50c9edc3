"""The open windows of a job: sums that grow batch by batch, and closings that hand out each window once.

Everything is a version of one batch table, so that a process that is killed between two steps is continued there:

    1. a batch is added, with the position in the stream where it ends;
    2. a closing is decided: windows up to a time, with the number of the closing;
    3. the windows are written to the target, as an epoch with this number, which commits once;
    4. the closing is done. Its rows are dropped when parts are merged.

A decided closing is finished before the next batch is added. So its rows cannot change, and an event whose window is
closed is known to be late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark.jobs.batch_table import MERGED_AT_ONCE, BatchRows, BatchTable

SUMS, QUARANTINE = KINDS = ("sums", "quarantine")
SMALL_PART_BYTES = 64 * 1024 * 1024
"""Larger parts of the quarantine stay as they are."""


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """What the table keeps in addition to its rows. Times are in milliseconds since 1970.

    `identity` is what must never change: the windows, the source and the target. `writer` writes to the target.
    `position` is the text of the cut up to which events are in the table, `newest_ms` the latest time of them. Windows
    that end at `closed_ms` or before are written. Those up to `closing_ms` are decided, and may be written; None: no
    closing is open. `closings` is how many are done.
    """

    identity: Mapping[str, Any]
    writer: str
    position: str | None = None
    newest_ms: int | None = None
    closed_ms: int | None = None
    closing_ms: int | None = None
    closings: int = 0

    def with_batch(self, position: str, newest_ms: int | None) -> WindowProgress:
        known = [time for time in (self.newest_ms, newest_ms) if time is not None]
        return replace(self, position=position, newest_ms=max(known, default=None))

    def closing(self, until_ms: int) -> WindowProgress:
        assert self.closing_ms is None
        assert self.closed_ms is None or until_ms > self.closed_ms
        return replace(self, closing_ms=until_ms)

    def closed(self) -> WindowProgress:
        assert self.closing_ms is not None
        return replace(self, closed_ms=self.closing_ms, closing_ms=None, closings=self.closings + 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": dict(self.identity),
            "writer": self.writer,
            "position": self.position,
            "newestMs": self.newest_ms,
            "closedMs": self.closed_ms,
            "closingMs": self.closing_ms,
            "closings": self.closings,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WindowProgress:
        """Raises CorruptError if `to_json` did not write the document."""
        try:
            return cls(
                dict(document["identity"]),
                str(document["writer"]),
                document["position"],
                document["newestMs"],
                document["closedMs"],
                document["closingMs"],
                int(document["closings"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"the table of windows has no progress that can be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Closing:
    """The windows to write: those in the rows of `paths` that end after `after_ms` (None: all) and by `until_ms`."""

    paths: Sequence[str]
    after_ms: int | None
    until_ms: int
    writer: str
    number: int


class WindowRows(Protocol):
    """What the table asks of the engine."""

    def has_windows(self, closing: Closing) -> bool:
        """Whether the closing has any window."""
        ...

    def write_windows(self, closing: Closing) -> int:
        """Write the windows as the epoch `closing.number` of the writer, if that was not done; how many are new."""
        ...

    def merge_sums(self, directories: Sequence[str], into: str, closed_ms: int | None) -> None:
        """Add up the rows of some directories, without windows that end at `closed_ms` or before."""
        ...

    def merge_quarantine(self, directories: Sequence[str], into: str) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchSums:
    """What was written of a batch: rows by kind, and the latest time of its events, None if it has none."""

    rows: Mapping[str, int]
    newest_ms: int | None


class WindowTable:
    """The table, for the one process that writes it.

    Raises:
        InvalidRequestError: code "other_windows": the table was begun with another identity.
    """

    def __init__(
        self,
        table: BatchTable,
        rows: WindowRows,
        identity: Mapping[str, Any],
        new_writer: str,
        *,
        merged_at_once: int = MERGED_AT_ONCE,
    ) -> None:
        self._table = table
        self._rows = rows
        self._merged_at_once = merged_at_once
        self.progress = (
            WindowProgress.from_json(table.version.state)
            if table.version.number
            else WindowProgress(identity, new_writer)
        )
        for name, value in self.progress.identity.items():
            if identity.get(name) != value:
                raise InvalidRequestError(
                    f"the checkpoint was begun with {name} = {value}, not {identity.get(name)}: use a new checkpoint",
                    code="other_windows",
                )
        table.clean(KINDS)

    def add_batch(
        self, query_id: str, batch_id: int, position: str, write: Callable[[Callable[[str], str]], BatchSums]
    ) -> BatchSums | None:
        """Add a batch that ends at `position`; None, and nothing is written, if it is in the table already."""
        assert self.progress.closing_ms is None, "finish() comes first"
        found: list[BatchSums] = []

        def written(path: Callable[[str], str]) -> BatchRows:
            sums = write(path)
            found.append(sums)
            return BatchRows(sums.rows, state=self.progress.with_batch(position, sums.newest_ms).to_json())

        if self._table.add_batch(query_id, batch_id, written) is None:
            return None
        self.progress = self.progress.with_batch(position, found[0].newest_ms)
        return found[0]

    def finish(self) -> int:
        """Finish the closing that an earlier run has decided, if there is one; how many windows were new."""
        if self.progress.closing_ms is None:
            return 0
        windows = self._rows.write_windows(self._closing(self.progress.closing_ms))
        self._record(self.progress.closed())
        return windows

    def close_until(self, until_ms: int | None) -> int:
        """Close the windows that end at a time or before; how many. None: the time is not known."""
        closed_ms = self.progress.closed_ms
        if until_ms is None or (closed_ms is not None and until_ms <= closed_ms):
            return 0
        if not self._table.version.of_kind(SUMS) or not self._rows.has_windows(self._closing(until_ms)):
            return 0
        self._record(self.progress.closing(until_ms))
        return self.finish()

    def tidy(self) -> None:
        """Merge small parts, and delete what is not needed any more."""
        assert self.progress.closing_ms is None, "a merge would drop rows of an open closing"
        closed_ms = self.progress.closed_ms

        def merge(directories: Sequence[str], into: str) -> None:
            self._rows.merge_sums(directories, into, closed_ms)

        merges = self._table.merge(SUMS, merge, at_once=self._merged_at_once)
        merges += self._table.merge(QUARANTINE, self._rows.merge_quarantine, bytes_max=SMALL_PART_BYTES)
        if merges:
            self._table.clean(KINDS)

    def _closing(self, until_ms: int) -> Closing:
        progress = self.progress
        return Closing(self._table.paths(SUMS), progress.closed_ms, until_ms, progress.writer, progress.closings)

    def _record(self, progress: WindowProgress) -> None:
        self._table.record(progress.to_json())
        self.progress = progress

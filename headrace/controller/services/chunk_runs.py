"""The chunk directory as readers need it: the runs that contain a range of a segment, contiguous and clipped to it.

A read costs one metadata query if it starts at the start of a run; otherwise it costs two. While a large merge moves
the runs of a segment, a read follows the link to them with one or two more queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.controller.services.segment_starts import truncated_before
from headrace.model.chunks import ChunkRun, RunLink, chunk_partition, chunk_run, chunk_sort, is_link, run_link
from headrace.model.errors import CorruptError, TruncatedError, UnavailableError
from headrace.ports.metadata_store import MetadataStore, Record


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """Runs without gaps from the start of a range up to `stored_until`.

    `is_complete` is true if nothing after them is stored.
    """

    runs: tuple[ChunkRun, ...]
    stored_until: int
    is_complete: bool


class ChunkRuns:
    """Reads the directory; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self, name: str, start: int, stop: int, limit: int) -> StoredRuns:
        """At most `limit` runs of [start, stop) of a segment.

        Raises:
            TruncatedError: the bytes at `start` were truncated; `details` tells where the segment starts.
            UnavailableError: the directory is being rewritten around `start`; repeat.
        """
        runs, more = self._runs(name, start, stop, limit)
        contiguous = tuple(_contiguous(runs, start, stop))
        reached = contiguous[-1].end if contiguous else start
        complete = not contiguous or reached >= stop or (not more and reached >= runs[-1].end)
        return StoredRuns(contiguous, reached, complete)

    def _runs(self, name: str, from_offset: int, to_offset: int, limit: int) -> tuple[list[ChunkRun], bool]:
        """At most `limit` runs from the one that contains `from_offset`, and whether more of the range may follow."""
        partition = chunk_partition(name)
        page = self._store.query(partition, first=chunk_sort(from_offset), last=chunk_sort(to_offset - 1), limit=limit)
        entries = [_entry(record) for record in page.records]
        more = page.next_after is not None
        if not entries or entries[0].offset != from_offset:
            before = self._entry_before(partition, from_offset)
            covering = [before] if before and before.end > from_offset else []
            if entries and not covering:
                raise _gap(name, from_offset, entries[0], is_head=before is None)
            more |= len(covering) + len(entries) > limit
            entries = [*covering, *entries][:limit]
        runs: list[ChunkRun] = []
        for entry in entries:
            if isinstance(entry, ChunkRun):
                runs.append(entry)
                continue
            linked, more = self._runs_behind(name, entry, from_offset, to_offset, limit - len(runs))
            runs += linked
        return runs, more

    def _runs_behind(
        self, name: str, link: RunLink, from_offset: int, to_offset: int, limit: int
    ) -> tuple[list[ChunkRun], bool]:
        """As `_runs`, for a link: the runs are those of another segment, with their offsets in this one."""
        shift = link.offset - link.position
        first, last = max(from_offset, link.offset) - shift, min(to_offset, link.end) - shift - 1
        partition = chunk_partition(link.segment)
        page = self._store.query(partition, first=chunk_sort(first), last=chunk_sort(last), limit=limit)
        found = [_entry(record) for record in page.records]
        if not found or found[0].offset != first:
            before = self._entry_before(partition, first)
            if before is None or before.end <= first:
                raise _being_rewritten(name, first + shift, link.offset)
            found.insert(0, before)
        runs = [
            ChunkRun(run.offset + shift, run.length, run.object_name, run.position)
            for run in found
            if isinstance(run, ChunkRun)
        ]
        return runs[:limit], page.next_after is not None or len(runs) > limit

    def _entry_before(self, partition: str, offset: int) -> ChunkRun | RunLink | None:
        """The last run or link that starts at or before `offset`; returns None without a query if that is negative."""
        if offset == 0:
            return None
        page = self._store.query(partition, first=chunk_sort(0), last=chunk_sort(offset), limit=1, descending=True)
        return _entry(page.records[0]) if page.records else None


def _contiguous(runs: Iterable[ChunkRun], from_offset: int, to_offset: int) -> Iterator[ChunkRun]:
    """The parts of `runs` that cover the range once, from its start up to the first gap.

    A query is not a snapshot. While larger runs replace smaller ones, it may return both of them, or neither. Overlaps
    are cut off. A gap ends the page, and the next page reads the directory again.
    """
    reached = from_offset
    for run in runs:
        if run.offset > reached:
            return
        end = min(run.end, to_offset)
        if end > reached:
            yield ChunkRun(reached, end - reached, run.object_name, run.position + reached - run.offset)
            reached = end


def _gap(
    name: str, from_offset: int, following: ChunkRun | RunLink, *, is_head: bool
) -> TruncatedError | UnavailableError:
    if is_head:
        return truncated_before(name, from_offset, following.offset)
    return _being_rewritten(name, from_offset, following.offset)


def _being_rewritten(name: str, offset: int, found: int) -> UnavailableError:
    return UnavailableError(
        f"the chunk directory of {name} has no run at {offset} but one at {found}: it is being rewritten, ask again",
        details={"segment": name, "offset": offset},
    )


def _entry(record: Record) -> ChunkRun | RunLink:
    try:
        parsed = run_link if is_link(record.body) else chunk_run
        entry = parsed(record.key.sort, record.body)
    except (KeyError, ValueError) as error:
        raise CorruptError(f"the record at {record.key} is not a run of the chunk directory: {error!r}") from error
    if entry.length < 1 or entry.position < 0 or entry.offset < 0:
        raise CorruptError(f"the run at {record.key} has impossible bounds: {entry}")
    return entry

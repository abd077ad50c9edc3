"""History: which parts of tier-2 objects contain a range of a segment, with signed links to read them from S3.

The service reads the chunk directory and signs links. It does not read the objects, and bytes that are not in tier 2
yet are not listed. A page costs one metadata query if it starts at the start of a run, as the head of an untruncated
segment and every continuation do; otherwise it costs two (`chunk_runs`). If it has links, it also costs a question to
the segment's store: where the segment starts now (`segment_starts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.api.plans import Chunk, Chunks
from headrace.controller.services.paging import PageRoom
from headrace.controller.services.stream_ends import SegmentStarts, truncated_before
from headrace.model.chunks import ChunkRun, RunLink, chunk_partition, chunk_run, chunk_sort, is_link, run_link
from headrace.model.errors import CorruptError, InvalidRequestError, TruncatedError, UnavailableError
from headrace.model.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from headrace.model.names import check_known_name, check_scope_name, check_stream_name, segment_name
from headrace.model.reader_groups import is_state_stream
from headrace.ports.chunk_storage import ChunkLinks
from headrace.ports.metadata_store import MetadataStore, Record
from headrace.ports.segment_stores import SegmentStores

# The chunk directory as readers need it: the runs that contain a range of a segment, contiguous and clipped to it.
#
# A read costs one metadata query if it starts at the start of a run; otherwise it costs two. While a large merge moves
# the runs of a segment, a read follows the link to them with one or two more queries.


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
        entries = [_entry(record) for record in page.records]
        if not entries or entries[0].offset != first:
            before = self._entry_before(partition, first)
            if before is None or before.end <= first:
                raise _being_rewritten(name, first + shift, link.offset)
            entries.insert(0, before)
        runs = [
            ChunkRun(run.offset + shift, run.length, run.object_name, run.position)
            for run in entries
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


def _being_rewritten(name: str, offset: int, next_run: int) -> UnavailableError:
    return UnavailableError(
        f"the chunk directory of {name} has no run at {offset} but one at {next_run}: it is being rewritten, ask again",
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


OFFSET_MAX = (1 << 63) - 1
SEGMENT_ID_MAX = (1 << 63) - 1


class HistoryService:
    """Lists chunks for readers that read from S3 themselves."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores, links: ChunkLinks) -> None:
        self._runs = ChunkRuns(store)
        self._starts = SegmentStarts(segment_stores)
        self._links = links

    def chunks(
        self,
        scope: str,
        stream: str,
        segment_id: int,
        from_offset: int = 0,
        to_offset: int | None = None,
        limit: int = PAGE_ITEMS_DEFAULT,
    ) -> Chunks:
        """At most `limit` chunks of [from_offset, to_offset), or up to the end of tier 2 if `to_offset` is None.

        An unknown segment gives the same answer as one without bytes in tier 2, because a check would cost a read.

        Raises:
            InvalidRequestError: a name, an offset or the limit is out of bounds.
            TruncatedError: the bytes at `from_offset` were truncated; `details` tells where the segment starts.
            NotFoundError: the segment was deleted, and its runs are still there.
            UnavailableError: the directory is being rewritten around `from_offset`, or no store knows where the segment
                starts; repeat.
        """
        stop = _check_range(from_offset, to_offset)
        if not 1 <= limit <= PAGE_ITEMS_MAX:
            raise InvalidRequestError(f"limit takes 1 to {PAGE_ITEMS_MAX}, not {limit}")
        if not 0 <= segment_id <= SEGMENT_ID_MAX:
            raise InvalidRequestError(f"{segment_id} is not a segment id")
        name = segment_name(check_scope_name(scope), _check_listed(stream), segment_id)
        if from_offset == stop:
            return Chunks((), from_offset, None)
        stored = self._runs.read(name, from_offset, stop, limit)
        if stored.runs:
            self._starts.check({name: from_offset})
        linked: list[Chunk] = []
        room = PageRoom()
        reached = from_offset
        for run in stored.runs:
            if room.is_full:
                break
            linked.append(linked_chunk(self._links, run))
            room.take(len(linked[-1].url))
            reached = run.end
        complete = stored.is_complete and reached == stored.stored_until
        return Chunks(tuple(linked), reached, None if complete else reached)


def _check_listed(stream: str) -> str:
    """The name of a user's stream, or of the stream with the state of a reader group, which clients read, too."""
    return check_known_name("stream", stream) if is_state_stream(stream) else check_stream_name(stream)


def linked_chunk(links: ChunkLinks, run: ChunkRun) -> Chunk:
    """The run with a link to read it."""
    link = links.link(run.object_name, run.position, run.length)
    return Chunk(run.offset, run.length, link.url, link.headers, link.expires_at_ms)


def _check_range(from_offset: int, to_offset: int | None) -> int:
    end = OFFSET_MAX if to_offset is None else to_offset
    if not 0 <= from_offset <= end <= OFFSET_MAX:
        raise InvalidRequestError(
            f"the range [{from_offset}, {to_offset}) is not a valid range of a segment",
            details={"from": from_offset, "to": to_offset},
        )
    return end

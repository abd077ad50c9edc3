"""History: which parts of tier-2 objects contain a range of a segment, with signed links to read them from S3.

The service reads the chunk directory and signs links. It does not read the objects, and bytes that are not in tier 2
yet are not listed. A page costs one metadata query if it starts at the start of a run, as the head of an untruncated
segment and every continuation do; otherwise it costs two (`chunk_runs`). If it has links, it also costs a question to
the segment's store: where the segment starts now (`segment_starts`).
"""

from __future__ import annotations

from headrace.api.chunks import Chunk, Chunks
from headrace.controller.services.chunk_runs import ChunkRuns
from headrace.controller.services.paging import PageRoom
from headrace.controller.services.segment_starts import SegmentStarts
from headrace.model.chunks import ChunkRun
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from headrace.model.names import check_scope_name, check_stream_name, segment_name
from headrace.ports.chunk_storage import ChunkLinks
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

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
        name = segment_name(check_scope_name(scope), check_stream_name(stream), segment_id)
        if from_offset == stop:
            return Chunks((), from_offset, None)
        found = self._runs.read(name, from_offset, stop, limit)
        if found.runs:
            self._starts.check({name: from_offset})
        linked: list[Chunk] = []
        room = PageRoom()
        reached = from_offset
        for run in found.runs:
            if room.is_full:
                break
            linked.append(linked_chunk(self._links, run))
            room.take(len(linked[-1].url))
            reached = run.end
        complete = found.is_complete and reached == found.stored_until
        return Chunks(tuple(linked), reached, None if complete else reached)


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

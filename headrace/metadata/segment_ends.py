"""The segments that a stream has from its head on, and how far tier 2 has them, as the chunk directory says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.metadata.bounded_cache import BoundedCache
from headrace.metadata.history_records import HistoryRecords
from headrace.model.chunks import OFFSET_BEHIND_ALL, chunk_partition, chunk_run, chunk_sort, is_link, run_link
from headrace.model.names import mark_segment_name, segment_name
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import PlacedCut, Side, side_of
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Key, MetadataStore

KNOWN_ENDS_MAX: Final = 100_000


def segments_from_head(
    stream: Stream, truncation: Truncation | None, history: HistoryRecords
) -> Iterator[StreamSegment]:
    """Each segment of a stream that its truncations have not deleted, once."""
    first_epoch = 0 if truncation is None else truncation.first_epoch
    seen: set[int] = set()
    for epoch in history.epochs(stream, range(first_epoch, stream.epoch.number + 1)):
        for segment in epoch.segments:
            if segment.segment_id not in seen:
                seen.add(segment.segment_id)
                if truncation is None or side_of(segment, truncation.head) is not Side.BEFORE:
                    yield segment


def has_entry_at(store: MetadataStore, segment: str, offset: int) -> bool:
    """Whether a run or a link of a segment, given by its name, begins at an offset."""
    return store.get(Key(chunk_partition(segment), chunk_sort(offset))) is not None


class SegmentEnds:
    """Looks the ends of segments up; each costs a query the first time. The table must not change meanwhile."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._ends: BoundedCache[str, int] = BoundedCache(KNOWN_ENDS_MAX, lambda _: 1)

    def end(self, scope: str, stream: str, identifier: int) -> int:
        """The offset behind the last byte of a segment in tier 2; 0 if it has none."""
        return self.of_name(segment_name(scope, stream, identifier))

    def of_marks(self, scope: str, stream: str) -> int:
        """As `end`, for the mark segment of a stream."""
        return self.of_name(mark_segment_name(scope, stream))

    def of_name(self, name: str) -> int:
        """As `end`, for a segment of any kind, given by its name."""
        known = self._ends.get(name)
        if known is None:
            known = self._find(name)
            self._ends.put(name, known)
        return known

    def of(self, cut: PlacedCut, head: Truncation | None) -> dict[int, int]:
        """The ends of the segments of a cut by id. A segment ends at the head of its stream, or behind it."""
        return self.of_segments(cut.cut.scope, cut.cut.stream, cut.segments, head)

    def of_segments(
        self, scope: str, stream: str, segments: Iterable[StreamSegment], head: Truncation | None
    ) -> dict[int, int]:
        """As `of`, for segments of a stream."""
        first = {} if head is None else head.cut.offsets
        return {
            each.segment_id: max(self.end(scope, stream, each.segment_id), first.get(each.segment_id, 0))
            for each in segments
        }

    def _find(self, name: str) -> int:
        page = self._store.query(
            chunk_partition(name),
            first=chunk_sort(0),
            last=chunk_sort(OFFSET_BEHIND_ALL - 1),
            limit=1,
            descending=True,
        )
        for record in page.records:
            if is_link(record.body):
                return run_link(record.key.sort, record.body).end
            return chunk_run(record.key.sort, record.body).end
        return 0

"""Moves what records say of the ends of segments back to where tier 2 has the segments, after a restore.

Between the last flush and the time of a restore, bytes were in the logs only, which a restore discards. The offsets of
these bytes name other bytes, once streams are written again. So no record may keep them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from headrace.metadata.history_records import decode_sealed_segments, sealed_segments_body
from headrace.metadata.reader_group import group_body, is_reader_group, read_reader_group
from headrace.metadata.retention_records import decode_retention_cut, retention_cut_body
from headrace.metadata.segment_ends import SegmentEnds, segments_from_head
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import decode_subscriber, subscriber_body
from headrace.metadata.truncation import read_truncation, truncation_key
from headrace.metadata.watermark_records import (
    WATERMARK_SORT,
    WRITER_MARKS_FIRST,
    decode_watermark_state,
    decode_writer_mark,
    watermark_state_body,
    writer_mark_body,
)
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import Truncation
from headrace.model.writer_marks import Positions
from headrace.ports.metadata_store import MetadataStore, Record, Replace

STREAMS_FIRST: Final = "stream/"
SUBSCRIBERS_FIRST: Final = "subscriber/"
RETENTION_CUTS_FIRST: Final = "retention-cut/"
SEALED_FIRST: Final = "sealed/"


class RestoredPositions:
    """Compares records with the chunk directory, which must not change meanwhile."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._streams = StreamRecords(store)
        self._ends = SegmentEnds(store)

    def move_back(self, record: Record) -> Replace | None:
        """The write that moves the positions of a record to the ends of their segments; None if none is behind one.

        Raises:
            CorruptError: the record, or one of its stream, cannot be read.
        """
        body = None
        if record.key.partition.startswith(STREAMS_FIRST):
            body = self._body(record)
        elif is_reader_group(record.key):
            body = self._group(record)
        return None if body is None or body == record.body else Replace(record.key, body, record.version)

    def ends_of(self, scope: str, stream: str, identifiers: Collection[int]) -> dict[int, int]:
        """The ends of those of the segments that the stream has from its head on. Raises as `move_back`."""
        stored = self._streams.find(scope, stream)
        if stored is None or stored.stream.is_deleting:
            return {}
        head = self._head(scope, stream)
        there = segments_from_head(stored.stream, head, self._streams.history)
        return self._ends.of_segments(scope, stream, [each for each in there if each.segment_id in identifiers], head)

    def _group(self, record: Record) -> Mapping[str, Any] | None:
        """The cuts between which a reader group reads."""
        group = read_reader_group(record)
        if group is None:
            return None
        streams = tuple(
            replace(each, start=self._within(each.start), end=self._within(each.end))
            for each in group.configuration.streams
        )
        return group_body(replace(group, configuration=replace(group.configuration, streams=streams)))

    def _within(self, cut: StreamCut | None) -> StreamCut | None:
        if cut is None:
            return None
        ends = self.ends_of(cut.scope, cut.stream, cut.offsets.keys())
        positions = tuple(
            (identifier, min(offset, ends.get(identifier, offset))) for identifier, offset in cut.positions
        )
        return replace(cut, positions=positions)

    def _body(self, record: Record) -> Mapping[str, Any] | None:
        """The body that a record of a stream is to have; None if it has no positions."""
        sort = record.key.sort
        if sort.startswith(SUBSCRIBERS_FIRST):
            subscriber = decode_subscriber(record.body)
            cut = subscriber.position
            ends = self._ends.of(cut, self._head(cut.cut.scope, cut.cut.stream))
            return subscriber_body(replace(subscriber, position=cut.within(ends)))
        if sort.startswith(RETENTION_CUTS_FIRST):
            place = decode_retention_cut(record.body)
            ends = self._ends.of(place.head, self._head(place.cut.scope, place.cut.stream))
            return retention_cut_body(replace(place, head=place.head.within(ends)))
        if sort.startswith(WRITER_MARKS_FIRST):
            mark, first_number = decode_writer_mark(record.body)
            return writer_mark_body(replace(mark, positions=self._positions(record, mark.positions)), first_number)
        if sort == WATERMARK_SORT:
            return self._watermark(record)
        return self._sealed(record) if sort.startswith(SEALED_FIRST) else None

    def _watermark(self, record: Record) -> Mapping[str, Any]:
        """The mark segment is not longer than tier 2 has it, either."""
        state = decode_watermark_state(record.body)
        last = state.last
        if last is not None:
            last = replace(last, cut=self._positions(record, last.cut))
        _, scope, name = record.key.partition.split("/")
        end = self._ends.of_marks(scope, name)
        last_offset, end_offset = min(state.last_offset, end), min(state.end_offset, end)
        return watermark_state_body(replace(state, last=last, last_offset=last_offset, end_offset=end_offset))

    def _positions(self, record: Record, positions: Positions) -> Positions:
        """Positions in segments before the head of the stream stay: their bytes are gone."""
        _, scope, name = record.key.partition.split("/")
        ends = self.ends_of(scope, name, {each.segment.segment_id for each in positions})
        return tuple(
            replace(each, offset=min(each.offset, ends.get(each.segment.segment_id, each.offset))) for each in positions
        )

    def _sealed(self, record: Record) -> Mapping[str, Any] | None:
        """Segments before the head of the stream have no bytes any more, and keep the lengths that they had."""
        _, scope, name = record.key.partition.split("/")
        sealed = decode_sealed_segments(record.body)
        ends = self.ends_of(scope, name, sealed)
        return sealed_segments_body(
            {
                identifier: replace(each, length=min(each.length, ends.get(identifier, each.length)))
                for identifier, each in sealed.items()
            }
        )

    def _head(self, scope: str, stream: str) -> Truncation | None:
        return read_truncation(self._store.get(truncation_key(scope, stream)))

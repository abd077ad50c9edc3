"""Completes the snapshots of restored containers: segments that the streams have, and only a log had told of.

A snapshot is some seconds older than the records of the streams. What came between was in the logs, which a restore
discards. Without this a segment that was just created would not exist, and writers of its stream would wait for ever.
One that was just sealed would not be sealed, and readers would wait at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from headrace.adapters.dynamodb.table_items import TableItems, key_of, record_of
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, without_lost_mark
from headrace.metadata.evicted_segment import evicted_segment_key, read_segment_record
from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.restored_positions import STREAMS_FIRST
from headrace.metadata.segment_ends import SegmentEnds, segments_from_head
from headrace.metadata.stream import CURRENT_SORT
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.transaction import transaction_left_open
from headrace.metadata.truncation import read_truncation, truncation_key
from headrace.model.chunks import chunk_partition, chunk_sort
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import segment_name, transaction_segment_name
from headrace.model.reader_groups import is_state_stream
from headrace.model.segment_attributes import CREATION_TIME, EVENT_COUNT, REVISION_MARK
from headrace.model.streams import Stream
from headrace.model.transactions import Transaction, TransactionState
from headrace.ports.metadata_store import READS_PER_BATCH_MAX, Key, MetadataStore

TRANSACTIONS_FIRST: Final = "transactions/"


class Expected(NamedTuple):
    """What a stream expects of a segment. `start` is the head of the stream in it, if tier 2 does not reach the head.

    A segment of an open transaction may lack bytes, so that the transaction will be aborted. Of a segment with the
    state of a reader group nothing that tier 2 has may be truncated: what replaces it is lost if tier 2 lacks it.
    """

    sealed: bool = False
    start: int = 0
    may_lack_bytes: bool = False
    is_group_state: bool = False


_NOTHING: Final = Expected()


class ExpectedSegments:
    """The segments of all streams and open transactions by container; about 300 bytes of memory for each."""

    def __init__(self, layout: ContainerLayout) -> None:
        self._layout = layout
        self._containers: dict[int, dict[str, Expected]] = {}

    def add(self, name: str, expected: Expected) -> None:
        """Expect a segment."""
        self._containers.setdefault(self._layout.container_of_segment(name), {})[name] = expected

    def of(self, container: int) -> Mapping[str, Expected]:
        """The expected segments of a container by name."""
        return self._containers.get(container, {})


def expected_segments(items: TableItems, store: MetadataStore, layout: ContainerLayout) -> ExpectedSegments:
    """What the records of streams and transactions expect of the containers. Reads the whole table once.

    Raises:
        CorruptError: a record of a stream or a transaction cannot be read.
        ThrottledError, UnavailableError: DynamoDB does not answer.
    """
    expected = ExpectedSegments(layout)
    records = StreamRecords(store)
    for page in items.pages():
        for item in page:
            key = key_of(item)
            if key.partition.startswith(STREAMS_FIRST) and key.sort == CURRENT_SORT:
                stored = records.stored(record_of(item))
                if stored is not None and not stored.stream.is_deleting:
                    _expect_stream(expected, store, stored.stream, records.history)
            elif key.partition.startswith(TRANSACTIONS_FIRST):
                transaction = transaction_left_open(record_of(item))
                if transaction is not None and transaction.state is TransactionState.OPEN:
                    _expect_transaction(expected, records, key, transaction)
    return expected


def completed_snapshot(
    snapshot: ContainerSnapshot, expected: Mapping[str, Expected], store: MetadataStore, now_ms: int
) -> tuple[ContainerSnapshot, int]:
    """The snapshot with what is expected of its container, and how many segments were added or sealed.

    A segment that has been evicted stays where its record is, unless it is to be sealed.
    """
    segments = list(snapshot.segments)
    known = {each.name for each in segments}
    ends = SegmentEnds(store)
    completed = [_adjusted(_readable(each, expected, ends), expected.get(each.name, _NOTHING)) for each in segments]
    changed = sum(before != after for before, after in zip(segments, completed, strict=True))
    number = snapshot.next_number
    missing = sorted(name for name in expected if name not in known and name not in snapshot.deletions)
    for first in range(0, len(missing), READS_PER_BATCH_MAX):
        batch = missing[first : first + READS_PER_BATCH_MAX]
        for added in _added(batch, expected, store, now_ms):
            completed.append(replace(added, number=number))
            number += 1
            changed += 1
    return replace(snapshot, next_number=number, segments=completed), changed


def _added(
    names: Sequence[str], expected: Mapping[str, Expected], store: MetadataStore, now_ms: int
) -> Iterator[SegmentSnapshot]:
    """Those of the segments that a container would not find, or would find unsealed."""
    records = store.get_many([evicted_segment_key(name) for name in names])
    for name, record in zip(names, records, strict=True):
        wanted = expected[name]
        if record is not None:
            state = read_segment_record(record).state
        elif _has_runs(store, name):  # its length is that of its runs, which the container looks up
            state = SegmentSnapshot(0, name, 0, 0, False, now_ms, {})
        else:
            attributes = {CREATION_TIME: now_ms, EVENT_COUNT: 0}
            fresh = SegmentSnapshot(0, name, 0, 0, False, now_ms, attributes, may_lack_bytes=wanted.may_lack_bytes)
            yield _adjusted(fresh, wanted)
            continue
        adjusted = _adjusted(state, wanted)
        if adjusted != state:
            yield adjusted


def _adjusted(segment: SegmentSnapshot, expected: Expected) -> SegmentSnapshot:
    """The segment as its stream expects it. Offsets before the head of the stream are not used again."""
    start = max(segment.start_offset, expected.start)
    length = max(segment.length, expected.start)
    return replace(segment, sealed=segment.sealed or expected.sealed, start_offset=start, length=length)


def _readable(segment: SegmentSnapshot, expected: Mapping[str, Expected], ends: SegmentEnds) -> SegmentSnapshot:
    """The segment without the mark and the truncation that were behind the end of tier 2, as far as readers need that.

    A snapshot has them as soon as they are made. The bytes that follow the end of tier 2 next are others.
    """
    is_group_state = expected.get(segment.name, _NOTHING).is_group_state
    if not is_group_state and REVISION_MARK not in segment.attributes:
        return segment
    end = ends.of_name(segment.name)
    if is_group_state and segment.start_offset > end:
        segment = replace(segment, start_offset=0)
    return without_lost_mark(segment, max(end, segment.start_offset))


def _has_runs(store: MetadataStore, name: str) -> bool:
    """Whether the chunk directory has something of a segment: then its container finds it, without attributes."""
    return bool(store.query(chunk_partition(name), first=chunk_sort(0), limit=1).records)


def _expect_stream(expected: ExpectedSegments, store: MetadataStore, stream: Stream, history: HistoryRecords) -> None:
    truncation = read_truncation(store.get(truncation_key(stream.scope, stream.name)))
    active, ends = stream.epoch.by_id, SegmentEnds(store)
    heads = {} if truncation is None else truncation.cut.offsets
    for segment in segments_from_head(stream, truncation, history):
        identifier = segment.segment_id
        head = heads.get(identifier, 0)
        start = head if head > 0 and head > ends.end(stream.scope, stream.name, identifier) else 0
        is_sealed = stream.state.is_sealed or identifier not in active
        name = segment_name(stream.scope, stream.name, identifier)
        expected.add(name, Expected(is_sealed, start, is_group_state=is_state_stream(stream.name)))


def _expect_transaction(expected: ExpectedSegments, records: StreamRecords, key: Key, transaction: Transaction) -> None:
    _, scope, name = key.partition.split("/")
    stored: StoredStream | None = records.find(scope, name)
    if stored is None or stored.stream.first_segment_number != transaction.first_segment_number:
        return
    for segment in records.history.epoch(stored.stream, transaction.reference_epoch).segments:
        if transaction.created_segments is None or segment.number in transaction.created_segments:
            parent = segment_name(scope, name, segment.segment_id)
            expected.add(transaction_segment_name(parent, transaction.transaction_id), Expected(may_lack_bytes=True))

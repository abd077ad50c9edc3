"""What a store that restores a segment from tier 2 alone is told of it, and when a segment may leave memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec import data_frames
from headrace.codec.container_snapshots import SegmentSnapshot
from headrace.model.segment_attributes import EVENT_COUNT
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.metadata import ContainerMetadata
from headrace.segmentstore.containers.segment import Segment, TieredState

WRITER, OTHER, CLIENT_KEY = (1 << 100) + 1, (1 << 100) + 2, (1 << 100) + 3


class Log:
    """A container's operations, each of which is durable at once."""

    def __init__(self) -> None:
        self.pool = BlockPool(8 << 20, 64 << 10)
        self.metadata = ContainerMetadata(0, self.pool, lambda _segment: None)
        self.entries = 0

    def create(self, name: str) -> Segment:
        self.apply(data_frames.CreateOperation(self.metadata.next_number, name, (), 0))
        return self.metadata.segments[name]

    def apply(self, operation: data_frames.Operation) -> None:
        self.entries += 1
        self.metadata.apply(operation, self.entries, self.entries)()

    def append(self, segment: Segment, writer: int, number: int, length: int = 2, events: int = 1) -> None:
        self.entries += 1
        offset, before = segment.accepted.length, segment.attribute(writer)
        self.metadata.append(segment, offset + length, writer, number, events, 0)
        reservation = self.pool.reserve(length)
        assert reservation is not None
        segment.index.add(offset, reservation, self.entries, (writer, before, events))
        segment.durable.length = offset + length

    def merge(self, target: Segment, source: Segment, *attributes: tuple[int, int]) -> None:
        offset, length = target.accepted.length, source.accepted.length
        self.apply(data_frames.MergeOperation(target.number, source.number, offset, length, attributes, 0))


def written_segment() -> Segment:
    """Events of two writers, then a merge that sets the number of one of them, then another event; 2 bytes each."""
    log = Log()
    segment, source = log.create("target"), log.create("source")
    log.append(segment, WRITER, 1)
    log.append(segment, OTHER, 7, events=2)
    log.append(segment, WRITER, 2)
    log.append(source, OTHER, 1, events=3)
    log.merge(segment, source, (WRITER, 5))
    log.append(segment, WRITER, 6)
    return segment


@pytest.mark.parametrize(
    ("tiered", "numbers", "events"),
    [
        (0, {}, 0),
        (2, {WRITER: 1}, 1),
        (4, {WRITER: 1, OTHER: 7}, 3),
        (6, {WRITER: 2, OTHER: 7}, 4),
        (8, {WRITER: 5, OTHER: 7}, 7),
        (10, {WRITER: 6, OTHER: 7}, 8),
    ],
)
def test_snapshot_has_the_writer_numbers_of_its_bytes(tiered: int, numbers: dict[int, int], events: int):
    """With a later number the writer would not send again what is lost; with an earlier one, what is there."""
    segment = written_segment()
    segment.advance_tiered(tiered)
    told = segment.stored_snapshot()
    assert told.length == tiered
    assert {key: value for key, value in told.attributes.items() if key != EVENT_COUNT} == numbers
    assert told.attributes.get(EVENT_COUNT, 0) == events


def test_snapshot_has_the_numbers_of_a_merge_it_can_complete():
    """Tier 2 has its bytes under the name of the source, and a restoration moves them."""
    segment = written_segment()
    segment.advance_tiered(6)
    segment.merges[0].source.advance_tiered(2)
    told = segment.stored_snapshot()
    assert [(merged.offset, merged.length, merged.place) for merged in told.merged] == [(6, 2, ("source", 0))]
    assert told.length == 6
    assert told.attributes == {WRITER: 5, OTHER: 7, EVENT_COUNT: 7}


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(("length", "source_tiered"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize("before_is_tiered", [False, True])
def test_snapshot_ends_before_what_tier_2_lacks(
    before: int, length: int, source_tiered: int, *, before_is_tiered: bool
):
    """A merge is behind bytes of its target. It sets a lower number of the writer, who goes on with that."""
    log = Log()
    segment, source = log.create("target"), log.create("source")
    if before:
        log.append(segment, WRITER, 9, length=before)
    log.append(source, OTHER, 1, length=length)
    log.merge(segment, source, (WRITER, 5))
    log.append(segment, WRITER, 6, length=1)
    if before_is_tiered:
        segment.advance_tiered(before)
    source.advance_tiered(source_tiered)
    is_complete, reaches_merge = source_tiered == length, before_is_tiered or not before
    told, again = segment.stored_snapshot(), list(segment.sources_behind_tier_2())
    assert told.length == segment.tiered.length
    if reaches_merge and is_complete:
        assert segment.tiered_end == before + length
        assert [(merged.offset, merged.length) for merged in told.merged] == [(before, length)]
        assert (told.attributes[WRITER], told.attributes[EVENT_COUNT]) == (5, 1 + bool(before))
    else:
        known = before if reaches_merge else 0
        assert (segment.tiered_end, told.merged) == (known, ())
        assert told.attributes.get(WRITER) == (9 if known else None)
        assert told.attributes[EVENT_COUNT] == bool(known)
    assert [each.name for each in again] == ["source"] * (is_complete and not reaches_merge)
    assert all(each.whole_length == length for each in again)


def test_snapshot_tells_whose_attributes_are_of_clients():
    log = Log()
    segment = log.create("a")
    log.append(segment, WRITER, 1)
    log.apply(data_frames.AttributesOperation(segment.number, ((CLIENT_KEY, 3),), 0))
    log.apply(data_frames.ForgetWritersOperation(segment.number, (WRITER,)))
    segment.accepted.whole_length, segment.accepted.may_lack_bytes = 9, True
    segment.advance_tiered(2)
    for told in (segment.stored_snapshot(), segment.snapshot()):
        assert told.client_attributes == {CLIENT_KEY}
        assert told.forgot_writers
        assert told.may_lack_bytes
        assert told.whole_length == 9
        assert WRITER not in told.attributes


snapshots = st.builds(
    SegmentSnapshot,
    number=st.integers(1, 9),
    name=st.just("a"),
    start_offset=st.integers(0, 5),
    length=st.integers(5, 9),
    sealed=st.booleans(),
    last_modified_ms=st.integers(0, 99),
    attributes=st.dictionaries(st.integers(0, 3), st.integers(0, 9)),
    client_attributes=st.frozensets(st.integers(0, 3)),
    forgot_writers=st.booleans(),
    writers_gone=st.none(),
    whole_length=st.none() | st.integers(0, 99),
    may_lack_bytes=st.booleans(),
)


@given(snapshots)
def test_restored_segment_is_as_its_snapshot(snapshot: SegmentSnapshot):
    pool = BlockPool(1 << 20, 64 << 10)
    for segment in (
        Segment.restored(snapshot, pool, TieredState(snapshot.length)),
        Segment.activated(snapshot, pool),
    ):
        durable = segment.durable
        assert segment.snapshot() == snapshot
        assert segment.stored_snapshot() == snapshot
        assert (durable.start_offset, durable.length) == (snapshot.start_offset, snapshot.length)
        assert durable.sealed is snapshot.sealed
        assert segment.broken_invariant is None
    assert segment.at_rest, "a record is written only of a segment of which tier 2 has nothing to trim"


def append_more(log: Log, segment: Segment) -> None:
    log.append(segment, WRITER, 2)


def accept_more(log: Log, segment: Segment) -> None:
    log.metadata.append(segment, segment.accepted.length + 1, WRITER, 2, 1, 0)


def accept_seal(log: Log, segment: Segment) -> None:
    log.metadata.apply(data_frames.SealOperation(segment.number, 0), 9, 9)


def accept_truncation(log: Log, segment: Segment) -> None:
    segment.tiered.trimmed_offset = 1
    log.metadata.apply(data_frames.TruncateOperation(segment.number, 1, 0), 9, 9)


def truncate(log: Log, segment: Segment) -> None:
    log.apply(data_frames.TruncateOperation(segment.number, 1, 0))


def remove(log: Log, segment: Segment) -> None:
    log.apply(data_frames.DeleteOperation(segment.number, 0))


def wait_for_more(_log: Log, segment: Segment) -> None:
    segment.durable.add_waiter(lambda: None)


def write_directory(_log: Log, segment: Segment) -> None:
    loop = asyncio.new_event_loop()
    segment.flushing = loop.create_future()
    loop.close()


def merge_into(log: Log, segment: Segment) -> None:
    source = log.create("source")
    log.append(source, WRITER, 1)
    log.merge(segment, source)
    segment.tiered.length = segment.accepted.length


CHANGES: list[Callable[[Log, Segment], None]] = [
    append_more,
    accept_more,
    accept_seal,
    accept_truncation,
    truncate,
    remove,
    wait_for_more,
    write_directory,
    merge_into,
]


@pytest.mark.parametrize("change", CHANGES)
def test_segment_with_work_to_do_is_not_at_rest(change: Callable[[Log, Segment], None]):
    """Its record would have a state that is not durable, or the work would be done for a segment without memory."""
    log = Log()
    segment = log.create("a")
    log.append(segment, WRITER, 1)
    segment.advance_tiered(2)
    assert segment.at_rest
    change(log, segment)
    assert not segment.at_rest

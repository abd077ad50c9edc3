"""How each operation changes the segments of a container, when it is accepted as in a replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.codec import data_frames
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, encode_segment
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.names import transient_segment_name
from headrace.model.segment_attributes import (
    CREATION_TIME,
    EVENT_COUNT,
    NO_VALUE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
)
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.metadata import (
    NAME_BYTES_MAX,
    ContainerMetadata,
    check_segment_name,
    is_name_for_tier_2,
)
from headrace.segmentstore.containers.segment import Segment

NAME, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
TRANSACTION = NAME + "#transaction." + "0" * 31 + "1"
WRITER = 5


class Made:
    """The metadata of a container, and the segments that its rates were told of, by name."""

    def __init__(self) -> None:
        self.pool = BlockPool(1 << 20, 64 << 10)
        self.told: list[str] = []
        self.metadata = ContainerMetadata(0, self.pool, lambda segment: self.told.append(segment.name))

    def apply(self, *operations: data_frames.Operation, entry: int = 0, ordering: int = 1) -> None:
        """Apply operations that are durable."""
        for operation in operations:
            self.metadata.apply(operation, entry, ordering)()

    def create(self, *names: str) -> list[Segment]:
        for name in names:
            self.apply(data_frames.CreateOperation(self.metadata.next_number, name, (), 0))
        self.told.clear()
        return [self.metadata.segments[name] for name in names]

    def append(self, segment: Segment, data: bytes, event_count: int = 1) -> None:
        reserved = self.pool.reserve(len(data))
        assert reserved is not None
        offset = segment.accepted.length
        end = offset + len(data)
        self.metadata.append(segment, end, WRITER, event_count, event_count, 0)
        segment.index.add(offset, reserved, 0, (WRITER, NO_VALUE, event_count))
        segment.durable.length = end


@pytest.mark.parametrize("key", [SCALE_POLICY_TYPE, SCALE_POLICY_RATE])
def test_rates_learn_of_what_may_start_or_end_a_watch(key: int):
    made = Made()
    (segment,) = made.create(NAME)
    for operation, told in [
        (data_frames.AttributesOperation(1, ((WRITER, 1),), 0), []),
        (data_frames.AttributesOperation(1, ((WRITER, 1), (key, 2)), 0), [NAME]),
        (data_frames.SealOperation(1, 0), [NAME]),
        (data_frames.DeleteOperation(1, 0), [NAME]),
        (data_frames.CreateOperation(2, OTHER, (), 0), [OTHER]),
    ]:
        made.apply(operation)
        assert made.told == told
        made.told.clear()
    assert segment.accepted.removed


@pytest.mark.parametrize(
    "operation",
    [
        data_frames.AttributesOperation(1, ((WRITER, 1),), 50),
        data_frames.SealOperation(1, 50),
        data_frames.TruncateOperation(1, 2, 50),
        data_frames.MergeOperation(1, 2, 3, 4, (), 50),
    ],
)
def test_changes_of_a_segment_have_their_time(operation: data_frames.Operation):
    made = Made()
    segment, source = made.create(NAME, TRANSACTION)
    made.append(segment, b"abc")
    made.append(source, b"more")
    assert segment.accepted.last_modified_ms == 0
    made.apply(operation)
    assert segment.accepted.last_modified_ms == 50
    made.metadata.append(segment, 99, WRITER, 2, 1, 70)
    assert segment.accepted.last_modified_ms == 70


def test_merge_moves_bytes_events_and_attributes():
    made = Made()
    target, source, empty = made.create(NAME, TRANSACTION, OTHER)
    made.append(target, b"abc", 2)
    made.append(source, b"more", 3)
    made.apply(data_frames.MergeOperation(1, 2, 3, 4, ((7, 8), (WRITER, 9)), 0), entry=20, ordering=30)
    assert (target.accepted.length, target.durable.length, target.accepted.removed) == (7, 7, False)
    assert (source.accepted.removed, set(made.metadata.segments)) == (True, {NAME, OTHER})
    assert (target.attribute(EVENT_COUNT), target.attribute(7), target.attribute(WRITER)) == (5, 8, 9)
    (merge,) = target.merges
    assert (merge.offset, merge.length, merge.source, merge.ordering, merge.ledger_entry) == (3, 4, source, 30, 20)
    assert ([tuple(each) for each in merge.undo], merge.event_count) == ([(7, NO_VALUE), (WRITER, 2)], 3)
    assert (target.times.newest, target.rehomed_end) == (30, 7)
    assert [each.offset for each in target.index.entries_behind(0)] == [0, 3]
    made.apply(data_frames.MergeOperation(1, empty.number, 7, 0, ((7, 9),), 0), entry=21, ordering=31)
    assert (list(target.merges), target.attribute(7), target.times.newest) == ([merge], 9, 30)
    assert made.metadata.deletions == {TRANSACTION: 20, OTHER: 21}
    assert target.attribute(EVENT_COUNT) == 5


def test_start_of_a_segment_never_goes_back():
    made = Made()
    (segment,) = made.create(NAME)
    made.append(segment, b"abc")
    for offset, start in [(2, 2), (1, 2), (3, 3)]:
        made.apply(data_frames.TruncateOperation(1, offset, 0))
        assert (segment.accepted.start_offset, segment.durable.start_offset) == (start, start)


def test_operation_that_changes_no_segment_is_corrupt():
    with pytest.raises(CorruptError, match="CheckpointOperation"):
        Made().apply(data_frames.CheckpointOperation(0, True, memoryview(b"")))


class Watch:
    def __init__(self) -> None:
        self.merges: list[tuple[int, int, int]] = []

    def record_merge(self, length: int, events: int, age_ms: int) -> None:
        self.merges.append((length, events, age_ms))


@pytest.mark.parametrize(("created", "age_ms"), [({CREATION_TIME: 400}, 600), ({}, 0)])
def test_watch_learns_how_long_a_transaction_was_open(created: dict[int, int], age_ms: int):
    made = Made()
    target, source = made.create(NAME, TRANSACTION)
    source.accepted.attributes.update(created)
    made.append(source, b"more", 3)
    target.watched = watch = Watch()  # type: ignore[assignment]
    made.apply(data_frames.MergeOperation(1, 2, 0, 4, (), 1000))
    assert watch.merges == [(4, 3, age_ms)]
    assert target.attribute(EVENT_COUNT) == 3


def test_storage_lengths_are_replayed_also_for_merged_sources():
    made = Made()
    target, source = made.create(NAME, TRANSACTION)
    made.append(target, b"abc")
    made.append(source, b"more")
    made.apply(data_frames.MergeOperation(1, 2, 3, 4, (), 0))
    made.apply(data_frames.StoredOperation(((1, 1),)))
    assert target.tiered.length == 1
    made.apply(data_frames.StoredOperation(((1, 3), (2, 4), (9, 5))))
    assert (target.tiered.length, source.tiered.length) == (3, 4)
    made.apply(data_frames.StoredOperation(((1, 2),)))
    assert target.tiered.length == 3, "a storage length never decreases"


def test_removal_frees_number_memory_and_later_the_name():
    made = Made()
    segment, _ = made.create(NAME, OTHER)
    made.append(segment, b"abc")
    settle = made.metadata.apply(data_frames.DeleteOperation(1, 0), 40, 1)
    assert (made.metadata.deletions, dict(made.metadata.deleted_numbers)) == ({NAME: 40}, {NAME: 1})
    assert made.pool.untiered_bytes == 3, "its bytes can be read until the removal is durable"
    settle()
    assert made.pool.untiered_bytes == 0
    assert not made.metadata._leaving
    with pytest.raises(CorruptError, match="refers to segment 1, which does not exist"):
        made.metadata.by_number(1)
    made.apply(data_frames.DeletionStoredOperation(2))
    assert NAME in made.metadata.deletions
    made.apply(data_frames.DeletionStoredOperation(1))
    assert (made.metadata.deletions, dict(made.metadata.deleted_numbers)) == ({}, {})


def test_source_of_a_merge_learns_that_its_name_is_free():
    made = Made()
    target, source = made.create(NAME, TRANSACTION)
    made.append(source, b"more")
    made.apply(data_frames.MergeOperation(1, 2, 0, 4, (), 0))
    made.apply(data_frames.DeletionStoredOperation(2))
    assert (source.name_is_free, list(target.merges) != []) == (True, True)


def test_container_that_is_given_up_keeps_no_bytes():
    made = Made()
    segment, leaving = made.create(NAME, OTHER)
    woken: list[str] = []
    for each in (segment, leaving):
        made.append(each, b"abc")
        each.durable.add_waiter(lambda each=each: woken.append(each.name))
    made.metadata.apply(data_frames.DeleteOperation(2, 0), 0, 1)
    made.metadata.release_memory()
    assert (made.pool.untiered_bytes, sorted(woken)) == (0, [NAME, OTHER])


def test_evicted_segment_comes_back_under_a_new_number():
    made = Made()
    (segment,) = made.create(NAME)
    made.append(segment, b"abc")
    segment.advance_tiered(3)
    state = replace(segment.snapshot(), number=4)
    assert not made.metadata.may_be_evicted(NAME)
    made.apply(data_frames.EvictOperation(1))
    assert (segment.accepted.removed, segment.accepted.evicted, made.metadata.segments) == (True, True, {})
    assert made.metadata.may_be_evicted(NAME)
    assert segment.index.first_offset is None
    with pytest.raises(CorruptError):
        made.metadata.by_number(1)
    made.apply(data_frames.ActivateOperation(memoryview(encode_segment(state))))
    again = made.metadata.segments[NAME]
    assert (made.metadata.by_number(4), again.accepted.length, made.metadata.next_number) == (again, 3, 5)
    assert made.told == [NAME]


def test_names_that_no_record_can_have_are_not_looked_up():
    made = Made()
    made.create(NAME)
    made.apply(data_frames.EvictOperation(data_frames.NO_SEGMENT), data_frames.DeleteOperation(1, 0))
    looked_up = [OTHER, NAME, transient_segment_name(OTHER, 1, 2), "x" * (NAME_BYTES_MAX + 1), "\ud800"]
    assert [made.metadata.may_be_evicted(name) for name in looked_up] == [True, False, False, False, False]


def test_name_for_tier_2_has_some_bytes_and_not_too_many():
    names = ["", "x", "x" * NAME_BYTES_MAX, "x" * (NAME_BYTES_MAX + 1), "\ud800"]
    assert [is_name_for_tier_2(name) for name in names] == [False, True, True, False, False]
    with pytest.raises(InvalidRequestError, match="of UTF-8"):
        check_segment_name("\ud800")
    with pytest.raises(InvalidRequestError, match="several transactions"):
        check_segment_name(TRANSACTION * 2)


def test_restored_container_goes_on_where_the_snapshot_was():
    made = Made()
    segment = SegmentSnapshot(3, NAME, 2, 9, False, 0, {})
    made.metadata.restore(ContainerSnapshot(7, {OTHER: 5}, [segment], has_records=True, doubtful_before=4))
    metadata = made.metadata
    assert (metadata.next_number, metadata.has_records, metadata.doubtful_before) == (7, True, 4)
    assert (metadata.deletions, dict(metadata.deleted_numbers)) == ({OTHER: -1}, {OTHER: 5})
    restored = metadata.by_number(3)
    assert (restored.tiered.length, restored.tiered.told_start, made.told) == (9, 0, [NAME])
    kept = metadata.snapshot()
    assert (kept.deletions, kept.next_number, kept.has_records, kept.doubtful_before) == ({OTHER: 5}, 7, True, 4)
    assert list(kept.segments) == [segment]


def test_loss_makes_records_and_open_transactions_doubtful():
    made = Made()
    segment, transaction = made.create(NAME, TRANSACTION)
    made.metadata.doubtful_before = 5
    for epoch, doubtful_before in ((4, 5), (9, 9)):
        made.metadata.pass_loss(epoch)
        assert (made.metadata.has_records, made.metadata.doubtful_before) == (True, doubtful_before)
    assert (segment.accepted.may_lack_bytes, transaction.accepted.may_lack_bytes) == (False, True)


def test_numbers_are_never_given_twice():
    made = Made()
    made.apply(data_frames.CreateOperation(8, NAME, (), 0), data_frames.CreateOperation(3, OTHER, (), 0))
    (segment,) = made.create("scope/stream/2.#epoch.0")
    state = replace(segment.snapshot(), number=4, name="scope/stream/3.#epoch.0")
    made.apply(data_frames.ActivateOperation(memoryview(encode_segment(state))))
    assert (segment.number, made.metadata.next_number) == (9, 10)


def test_source_that_a_restoration_finds_is_not_removed_there():
    """Tier 2 has all of the source, but not the bytes of the target before it: the merge is repeated."""
    made = Made()
    target, source, _ = made.create(NAME, TRANSACTION, OTHER)
    made.append(target, b"abc")
    made.append(source, b"more")
    source.advance_tiered(4)
    made.apply(data_frames.MergeOperation(1, 2, 3, 4, (), 0), data_frames.DeleteOperation(3, 0))
    stored = made.metadata.stored_snapshot()
    assert [(each.name, each.length) for each in stored.segments] == [(NAME, 0), (TRANSACTION, 4)]
    assert stored.deletions == {OTHER: 3}
    assert made.metadata.snapshot().deletions == {TRANSACTION: 2, OTHER: 3}


def test_ids_that_clients_set_are_remembered_as_theirs():
    made = Made()
    (segment,) = made.create(NAME)
    for key in (WRITER, WRITER + 1):
        made.apply(data_frames.AttributesOperation(1, ((key, 1), (EVENT_COUNT, 2)), 0))
    assert segment.accepted.client_attributes == {WRITER, WRITER + 1}
    made.apply(data_frames.ForgetWritersOperation(1, (WRITER + 1, 77)))
    assert (segment.accepted.forgot_writers, segment.attribute(WRITER + 1)) == (True, NO_VALUE)
    assert segment.attribute(WRITER) == 1

"""Immutable records are read once per incarnation of a stream, and never from another incarnation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_records import GoldenRecords

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.history_records import (
    HistoryRecords,
    SealedSegment,
    create_epoch,
    decode_sealed_segments,
    extend_sealed_segments,
    sealed_segments_body,
    sealed_segments_key,
    shard_of_segment,
)
from headrace.metadata.stream import epoch_key
from headrace.model import streams
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import NotFoundError
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.streams import Stream, new_stream
from headrace.ports.metadata_store import Create, Delete, Key

CONFIGURATION = StreamConfiguration(ScalingPolicy.fixed(1))


def _incarnation(first_number: int) -> tuple[Stream, list[Epoch]]:
    """A stream of one segment after three scales, and its epochs."""
    stream = streams.completed(streams.new_stream("s", "t", CONFIGURATION, first_number, 1_000))
    epochs = [stream.epoch]
    for _ in range(3):
        (segment,) = epochs[-1].segments
        epochs.append(scaled_epoch(epochs[-1], [segment.segment_id], [segment.key_range], 1_000))
    return replace(stream, epoch=epochs[-1], recorded_epoch=3), epochs


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
def history(store: MemoryMetadataStore) -> HistoryRecords:
    return HistoryRecords(store)


def test_epochs_are_returned_in_the_requested_order(store: MemoryMetadataStore, history: HistoryRecords):
    stream, epochs = _incarnation(0)
    for epoch in epochs[:3]:
        store.write(*create_epoch(stream, epoch))
    assert list(history.epochs(stream, [2, 0, 3, 1])) == [epochs[2], epochs[0], epochs[3], epochs[1]]
    with pytest.raises(NotFoundError, match="no epoch 4"):
        history.epoch(stream, 4)


def test_cached_record_is_not_read_again(store: MemoryMetadataStore, history: HistoryRecords):
    stream, epochs = _incarnation(0)
    key = sealed_segments_key("s", "t", (0, 0))
    for epoch in epochs[:3]:
        store.write(*create_epoch(stream, epoch))
    store.write(Create(key, sealed_segments_body({0: SealedSegment(7, 1)})))
    assert history.epoch(stream, 1) == epochs[1]
    assert history.sealed_segments(stream, [0]) == {0: SealedSegment(7, 1)}
    store.write(Delete(epoch_key("s", "t", 1), None), Delete(key, None))
    assert history.epoch(stream, 1) == epochs[1]
    assert history.sealed_segments(stream, [0, 1]) == {0: SealedSegment(7, 1)}


def test_new_incarnation_does_not_see_cached_records(store: MemoryMetadataStore, history: HistoryRecords):
    first, first_epochs = _incarnation(0)
    second, second_epochs = _incarnation(4)
    for epoch in first_epochs[:3]:
        store.write(*create_epoch(first, epoch))
    assert history.epoch(first, 1) == first_epochs[1]
    for epoch in first_epochs[:3]:
        store.write(*(Delete(write.key, None) for write in create_epoch(first, epoch)))
    for epoch in second_epochs[:3]:
        store.write(*create_epoch(second, epoch))
    assert history.epoch(second, 1) == second_epochs[1]
    assert history.epoch(second, 1) != first_epochs[1]


def test_old_incarnation_gets_no_epoch_of_the_new_one(store: MemoryMetadataStore, history: HistoryRecords):
    first, _ = _incarnation(0)
    second, second_epochs = _incarnation(4)
    store.write(*create_epoch(second, second_epochs[0]))
    with pytest.raises(NotFoundError):
        history.epoch(first, 0)
    assert history.epoch(second, 0) == second_epochs[0]


def test_later_recorded_sizes_are_found(store: MemoryMetadataStore, history: HistoryRecords):
    stream, _ = _incarnation(0)
    assert history.sealed_segments(stream, [0]) == {}
    store.write(Create(sealed_segments_key("s", "t", (0, 0)), sealed_segments_body({0: SealedSegment(7, 1)})))
    assert history.sealed_segments(stream, [0]) == {0: SealedSegment(7, 1)}


def test_sizes_are_found_in_every_shard(store: MemoryMetadataStore, history: HistoryRecords):
    stream, _ = _incarnation(0)
    sealed = {number: SealedSegment(number, 1) for number in range(0, 80_000, 200)}
    for shard in range(200):
        part = {number: end for number, end in sealed.items() if number // 400 == shard}
        store.write(Create(sealed_segments_key("s", "t", (shard, 0)), sealed_segments_body(part)))
    assert history.sealed_segments(stream, list(sealed)) == sealed


def test_deleted_history_is_not_found(history: HistoryRecords):
    stream, epochs = _incarnation(0)
    assert history.epoch_at(stream, epochs[3].creation_time_ms) == epochs[3]
    with pytest.raises(NotFoundError, match="being deleted"):
        history.epoch_at(stream, 1_000)


SEALED = {5: SealedSegment(2**62, 1), 6: SealedSegment(0, None)}
SECOND_EPOCH = 1 << 32
STREAM = new_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)), 5, 1_000)


class TestSealedSegments(GoldenRecords):
    shapes = {
        "sealed segments": (
            SEALED,
            sealed_segments_body,
            decode_sealed_segments,
            {"format": 1, "segments": {"5": [2**62, 1], "6": [0, None]}},
        )
    }


def test_key():
    assert sealed_segments_key("s", "t", (2, 1)) == Key("stream/s/t", "sealed/0000000002/0000000001")


def test_shards_are_blocks_of_numbers_and_epochs():
    assert shard_of_segment(SECOND_EPOCH | 1_199) == (2, 0)
    assert shard_of_segment(33 << 32 | 400) == (1, 2)


def test_an_entry_of_a_shard_never_changes():
    store = MemoryMetadataStore()
    first = extend_sealed_segments(store, STREAM, (0, 0), {5: SealedSegment(1, 1)})
    assert first is not None
    store.write(first)
    assert extend_sealed_segments(store, STREAM, (0, 0), {5: SealedSegment(9, 9)}) is None
    second = extend_sealed_segments(store, STREAM, (0, 0), {5: SealedSegment(9, 9), 6: SealedSegment(2, None)})
    assert second is not None
    store.write(second)
    record = store.get(sealed_segments_key("s", "t", (0, 0)))
    assert record is not None
    assert decode_sealed_segments(record.body) == {5: SealedSegment(1, 1), 6: SealedSegment(2, None)}


def test_an_entry_without_an_epoch_gains_it_once():
    store = MemoryMetadataStore()
    first = extend_sealed_segments(store, STREAM, (0, 0), {5: SealedSegment(7, None), 6: SealedSegment(8, 2)})
    assert first is not None
    store.write(first)
    gained = extend_sealed_segments(store, STREAM, (0, 0), {5: SealedSegment(7, 3), 6: SealedSegment(8, None)})
    assert gained is not None
    assert decode_sealed_segments(gained.body) == {5: SealedSegment(7, 3), 6: SealedSegment(8, 2)}
    store.write(gained)
    assert extend_sealed_segments(store, STREAM, (0, 0), {5: SealedSegment(7, None)}) is None

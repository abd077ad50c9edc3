"""The records of the sizes of sealed segments: golden value, keys and shards."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.sealed_segments import (
    SealedSegment,
    decode_sealed_segments,
    extend_sealed_segments,
    sealed_segments_body,
    sealed_segments_key,
    shard_of_segment,
)
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.streams import new_stream
from headrace.ports.metadata_store import Key

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

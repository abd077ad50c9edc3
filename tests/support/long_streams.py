"""Streams with thousands of epochs, whose records are written directly, as their workflows would have left them."""

from __future__ import annotations

from dataclasses import replace

from stream_world import StreamWorld

from headrace.metadata.history_records import (
    SealedSegment,
    create_epoch,
    sealed_segments_body,
    sealed_segments_key,
    shard_of_segment,
)
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.stream_records import StreamRecords
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.names import segment_name
from headrace.ports.metadata_store import Create, Replace
from headrace.ports.segment_stores import SegmentScaleRate

BYTES = 10
"""In every segment, as one append."""

WRITES_AT_ONCE = 100


def long_stream(world: StreamWorld, epochs: int, segments: int) -> list[Epoch]:
    """Makes the stream `t`. Each epoch replaces all segments by segments with the same key ranges."""
    world.create(segments=segments)
    recorded = [world.records.get("s", "t").stream.epoch]
    for number in range(1, epochs):
        last = recorded[-1]
        ranges = [segment.key_range for segment in last.segments]
        recorded.append(scaled_epoch(last, [segment.segment_id for segment in last.segments], ranges, 1_000 + number))
    store, key = world.bare_store, current_key("s", "t")
    stored = StreamRecords(store).stored(store.get(key))
    assert stored is not None
    stream = replace(stored.stream, epoch=recorded[-1], recorded_epoch=epochs - 1)
    store.write(Replace(key, stream_body(stream), stored.version))
    shards: dict[tuple[int, int], dict[int, SealedSegment]] = {}
    for epoch in recorded[1:]:
        for gone in epoch.replaced:
            shards.setdefault(shard_of_segment(gone.segment_id), {})[gone.segment_id] = SealedSegment(
                BYTES, epoch.number
            )
    writes = [write for epoch in recorded[1:] for write in create_epoch(stream, epoch)]
    for start in range(0, len(writes), WRITES_AT_ONCE):
        store.write(*writes[start : start + WRITES_AT_ONCE])
    for shard, sealed in shards.items():
        store.write(Create(sealed_segments_key("s", "t", shard), sealed_segments_body(sealed)))
    for epoch in recorded:
        for segment in epoch.created:
            name = segment_name("s", "t", segment.segment_id)
            world.bare_segment_stores.create_segment(name, SegmentScaleRate())
            world.bare_segment_stores.extend(name, BYTES)
    world.calls.counts.clear()
    return recorded

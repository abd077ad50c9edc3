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
from headrace.ports.metadata_store import Create, MetadataStore, Replace
from headrace.ports.segment_stores import SegmentScaleRate

BYTES = 10
"""In every segment, as one append."""

WRITES_AT_ONCE = 100


def record_epochs(store: MetadataStore, scope: str, name: str, epochs: int) -> list[Epoch]:
    """Moves a new stream to its epoch `epochs - 1`, and returns all. Each replaced all segments of the one before."""
    stored = StreamRecords(store).stored(store.get(current_key(scope, name)))
    assert stored is not None
    recorded = [stored.stream.epoch]
    for number in range(1, epochs):
        last = recorded[-1]
        ranges = [segment.key_range for segment in last.segments]
        sealed = [segment.segment_id for segment in last.segments]
        recorded.append(scaled_epoch(last, sealed, ranges, stored.stream.creation_time_ms + number))
    stream = replace(stored.stream, epoch=recorded[-1], recorded_epoch=epochs - 1)
    store.write(Replace(current_key(scope, name), stream_body(stream), stored.version))
    shards: dict[tuple[int, int], dict[int, SealedSegment]] = {}
    for epoch in recorded[1:]:
        for gone in epoch.replaced:
            shards.setdefault(shard_of_segment(gone.segment_id), {})[gone.segment_id] = SealedSegment(
                BYTES, epoch.number
            )
    writes = [write for epoch in recorded[1:] for write in create_epoch(stream, epoch)]
    for start in range(0, len(writes), WRITES_AT_ONCE):
        store.write(*writes[start : start + WRITES_AT_ONCE])
    for shard, segments in shards.items():
        store.write(Create(sealed_segments_key(scope, name, shard), sealed_segments_body(segments)))
    return recorded


def long_stream(world: StreamWorld, epochs: int, segments: int) -> list[Epoch]:
    """Makes the stream `t`. Each epoch replaces all segments by segments with the same key ranges."""
    world.create(segments=segments)
    recorded = record_epochs(world.bare_store, "s", "t", epochs)
    for epoch in recorded:
        for segment in epoch.created:
            name = segment_name("s", "t", segment.segment_id)
            world.bare_segment_stores.create_segment(name, SegmentScaleRate())
            world.bare_segment_stores.extend(name, BYTES)
    world.calls.counts.clear()
    return recorded

"""The largest records that there may be fit into what the metadata store takes."""

from __future__ import annotations

import json

from headrace.metadata.history_records import (
    EPOCHS_PER_SHARD,
    NUMBERS_PER_SHARD,
    SealedSegment,
    sealed_segments_body,
    shard_of_segment,
)
from headrace.metadata.stream import configuration_update_body, stream_body
from headrace.metadata.truncation import running_truncation_body
from headrace.model.epochs import scaled_epoch
from headrace.model.log_classes import NUMBER_BLOCK
from headrace.model.segments import equal_ranges, segment_id
from headrace.model.stream_configuration import (
    ConfigurationUpdate,
    ScalingPolicy,
    StreamConfiguration,
)
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.streams import Stream, new_stream
from headrace.model.truncation import RunningTruncation, Truncation


def test_the_largest_records_can_be_stored():
    """DynamoDB takes 400 KB: a stream of 1,000 segments that were all just replaced, with all the tags there may be."""
    tags = tuple(f"{index:03d}" + "\u00e4" * 253 for index in range(128))
    configuration = StreamConfiguration(ScalingPolicy.fixed(1000), tags=tags)
    stream = new_stream("s" * 255, "t" * 250, configuration, 2047 * NUMBER_BLOCK - 5_000, 10**13)
    epoch = scaled_epoch(
        stream.epoch, [segment.segment_id for segment in stream.epoch.segments], equal_ranges(999), 10**13
    )
    full = Stream(**{**{name: getattr(stream, name) for name in Stream.__slots__}, "epoch": epoch})
    assert len(json.dumps(stream_body(full))) < 390 * 1024
    newest = 2**31 - EPOCHS_PER_SHARD
    ids = [
        segment_id(newest + epoch, number) for epoch in range(EPOCHS_PER_SHARD) for number in range(NUMBERS_PER_SHARD)
    ]
    assert len({shard_of_segment(identifier) for identifier in ids}) == 1
    shard = {identifier: SealedSegment(2**50, 2**31 - 1) for identifier in ids}
    assert len(json.dumps(sealed_segments_body(shard), separators=(",", ":"))) < 390 * 1024
    update = configuration_update_body(ConfigurationUpdate(configuration, configuration, 9))
    assert len(json.dumps(update)) < 390 * 1024
    cut = StreamCut("s" * 255, "t" * 250, tuple((segment.segment_id, 2**62) for segment in stream.epoch.segments))
    head = PlacedCut(cut, stream.epoch.segments)
    running = RunningTruncation(head, 2**31, Truncation(head, 2**31, 2**62), 2**31, 2**62)
    assert len(json.dumps(running_truncation_body(running))) < 390 * 1024
    shard = {2**62 + number: SealedSegment(2**62, 2**31 - 1) for number in range(500)}
    assert len(json.dumps(sealed_segments_body(shard))) < 100 * 1024

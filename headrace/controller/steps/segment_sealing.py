"""Seals segments and records their sizes: part of a scale, a rolling commit and the seal of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.controller.engine import Tools
from headrace.metadata.sealed_segments import (
    SealedSegment,
    Shard,
    extend_sealed_segments,
    shard_of_segment,
)
from headrace.metadata.stream_records import StoredStream
from headrace.model.errors import UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment
from headrace.model.streams import Stream


def seal_segments(tools: Tools, stream: Stream, segments: Sequence[StreamSegment]) -> None:
    tools.segment_stores.seal_segments(
        [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    )


def record_sizes(
    tools: Tools, stored: StoredStream, segments: Sequence[StreamSegment], replaced_in: int | None
) -> None:
    """Record the final lengths, shard by shard. Entries that exist already stay unchanged.

    Raises:
        UnavailableError: a segment is not sealed yet; seal it again.
    """
    stream = stored.stream
    names = [segment_name(stream.scope, stream.name, segment.segment_id) for segment in segments]
    shards: dict[Shard, dict[int, SealedSegment]] = {}
    for segment, info in zip(segments, tools.segment_stores.segment_infos(names), strict=True):
        if not info.is_sealed:
            raise UnavailableError(f"segment {info.name} was to be sealed but is not: trying again")
        of_shard = shards.setdefault(shard_of_segment(segment.segment_id), {})
        of_shard[segment.segment_id] = SealedSegment(info.length, replaced_in)
    for shard, found in sorted(shards.items()):
        _extend_shard(tools, stored, shard, found)


def _extend_shard(tools: Tools, stored: StoredStream, shard: Shard, sealed: dict[int, SealedSegment]) -> None:
    write = extend_sealed_segments(tools.records.store, stored.stream, shard, sealed)
    if write is not None:
        tools.records.while_unchanged(stored, write)

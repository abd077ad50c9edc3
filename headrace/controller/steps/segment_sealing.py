"""Seals segments and records their sizes: part of scales, rolling commits, and the seal and the freeze of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.controller.engine import Tools
from headrace.metadata.commit_records import commit_run_key
from headrace.metadata.history_records import (
    SealedSegment,
    Shard,
    extend_sealed_segments,
    shard_of_segment,
)
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.errors import UnavailableError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment
from headrace.model.streams import Stream, completed
from headrace.ports.metadata_store import Check


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


def close_sealed(tools: Tools, stored: StoredStream) -> None:
    """End a seal or a freeze if the segments that were sealed are still the active ones, and no run commits into them.

    A transaction that was begun late may be marked after the others were settled. A run that commits it, perhaps in
    another process, must end before, because it replaces the segments.
    """
    stream = stored.stream
    no_run = Check(commit_run_key(stream.scope, stream.name), None)
    tools.records.replace(stored, completed(stream), delete_intent(stream), no_run)


def _extend_shard(tools: Tools, stored: StoredStream, shard: Shard, sealed: dict[int, SealedSegment]) -> None:
    write = extend_sealed_segments(tools.records.store, stored.stream, shard, sealed)
    if write is not None:
        tools.records.while_unchanged(stored, write)

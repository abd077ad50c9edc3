"""Create a stream: its segments, its entries in the tag index, then open it."""

from __future__ import annotations

from headrace.controller.steps.segment_creation import create_segments
from headrace.controller.workflow import Step, Tools, Workflow
from headrace.metadata.stream_indexes import index_tags
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.requests import RequestKind
from headrace.model.streams import Stream, completed


def _create_segments(tools: Tools, stored: StoredStream) -> StoredStream | None:
    return create_segments(tools, stored, stored.stream.epoch.segments)


def _has_tags(stream: Stream) -> bool:
    return bool(stream.configuration.tags)


def _index_tags(tools: Tools, stored: StoredStream) -> None:
    """More tags than one transaction holds: so the index is filled here, and complete before the stream is ACTIVE."""
    index_tags(tools.records, stored, stored.stream.configuration.tags)


def _open(tools: Tools, stored: StoredStream) -> None:
    tools.records.replace(stored, completed(stored.stream), delete_intent(stored.stream))


CREATE_STREAM = Workflow(
    RequestKind.CREATE_STREAM,
    (
        Step("create segments", _create_segments),
        Step("index tags", _index_tags, applies=_has_tags),
        Step("open", _open),
    ),
)

"""Create a stream: its segments, its entries in the tag index, then open it."""

from __future__ import annotations

from headrace.codec.records.listing_record import tag_body
from headrace.metadata import keys
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.requests import RequestKind
from headrace.model.streams import Stream, created
from headrace.ports.metadata_store import Create, Key
from headrace.workflows.creating import create_segments
from headrace.workflows.steps import Step, Tools, Workflow

_TAGS_PER_READ = 100
_TAGS_PER_WRITE = 90
"""Below WRITES_PER_TRANSACTION_MAX, with room for the check of the current record."""


def _create_segments(tools: Tools, stored: StoredStream) -> None:
    create_segments(tools, stored.stream, stored.stream.epoch.segments)


def _has_tags(stream: Stream) -> bool:
    return bool(stream.configuration.tags)


def _index_tags(tools: Tools, stored: StoredStream) -> None:
    """More tags than one transaction holds: so the index is filled here, and complete before the stream is ACTIVE."""
    present = _present(tools, stored.stream)
    missing = [key for key in _tag_keys(stored.stream) if key not in present]
    for start in range(0, len(missing), _TAGS_PER_WRITE):
        writes = [Create(key, tag_body()) for key in missing[start : start + _TAGS_PER_WRITE]]
        tools.records.while_unchanged(stored, *writes)


def _open(tools: Tools, stored: StoredStream) -> None:
    tools.records.replace(stored, created(stored.stream), delete_intent(stored.stream))


def _tag_keys(stream: Stream) -> list[Key]:
    return [keys.tag_key(stream.scope, stream.name, tag) for tag in stream.configuration.tags]


def _present(tools: Tools, stream: Stream) -> set[Key]:
    wanted = _tag_keys(stream)
    batches = [wanted[start : start + _TAGS_PER_READ] for start in range(0, len(wanted), _TAGS_PER_READ)]
    return {record.key for batch in batches for record in tools.records.store.get_many(batch) if record is not None}


CREATE_STREAM = Workflow(
    RequestKind.CREATE_STREAM,
    (
        Step("create segments", _create_segments),
        Step("index tags", _index_tags, applies=_has_tags),
        Step("open", _open),
    ),
)

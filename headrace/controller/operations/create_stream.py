"""Create a stream: its segments, its entries in the tag index, then it is ACTIVE."""

from __future__ import annotations

from headrace.api.streams import StreamView
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import STREAM
from headrace.controller.steps.stream_segments import create_segments
from headrace.metadata.history_records import create_epoch
from headrace.metadata.scope import creation_lock_key, keep_scope, no_such_scope, scope_exists, scope_guard_key
from headrace.metadata.stream import current_key, first_segment_number, is_stream
from headrace.metadata.stream_indexes import index_tags, writes_of_creation
from headrace.metadata.stream_records import StoredStream, create_current, delete_intent
from headrace.model.errors import AlreadyExistsError
from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import completed, new_stream


def accept(acceptance: Acceptance, scope: str, stream: str, configuration: StreamConfiguration) -> StreamView:
    """Accept a new stream; raises as `StreamService.create_stream` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, stream, configuration))


def _accept(acceptance: Acceptance, scope: str, name: str, configuration: StreamConfiguration) -> StreamView:
    guard, lock, current = acceptance.store.get_many(
        [scope_guard_key(scope), creation_lock_key(scope, name), current_key(scope, name)]
    )
    if guard is None or not scope_exists(guard):
        raise no_such_scope(scope)
    if is_stream(current):
        raise AlreadyExistsError(f"stream {scope}/{name} exists", details={"scope": scope, "stream": name})
    first_number = first_segment_number(current)
    stream = new_stream(scope, name, configuration, first_number, acceptance.clock.now_ms())
    acceptance.create_stream(
        stream,
        *create_current(stream, tombstone=current),
        *create_epoch(stream, stream.epoch),
        *writes_of_creation(stream),
        *keep_scope(scope, name, guard, lock),
    )
    return StreamView.of(stream)


def _create_segments(tools: Tools, stored: StoredStream) -> StoredStream | None:
    return create_segments(tools, stored, stored.stream.epoch.segments)


def _has_tags(stored: StoredStream) -> bool:
    return bool(stored.stream.configuration.tags)


def _index_tags(tools: Tools, stored: StoredStream) -> None:
    """A stream may have more tags than one write contains. So a step writes the index, before the stream is ACTIVE."""
    index_tags(tools.records, stored, stored.stream.configuration.tags)


def _open(tools: Tools, stored: StoredStream) -> None:
    tools.records.replace(stored, completed(stored.stream), delete_intent(stored.stream))


CREATE_STREAM = Operation(
    RequestKind.CREATE_STREAM,
    STREAM,
    (
        Step("create segments", _create_segments),
        Step("index tags", _index_tags, applies=_has_tags),
        Step("open", _open),
    ),
    rollback=MUST_COMPLETE,
)

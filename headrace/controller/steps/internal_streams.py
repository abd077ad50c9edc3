"""Creates and deletes streams that another resource owns, such as the state of a reader group.

They are streams like any other, with the same records and operations, but not in the list of their scope. Each change
is accepted on a condition on the owner, in the same transaction. So a late process of a former incarnation of the owner
cannot create its stream again. The stream's own operation then runs at once, and its intent survives a crash.
"""

from __future__ import annotations

from headrace.controller.engine import Tools, run_request
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream import current_key, first_segment_number
from headrace.metadata.stream_records import StoredStream, create_current, create_intent
from headrace.model.errors import ConflictError
from headrace.model.requests import RequestKind
from headrace.model.stream_configuration import StreamConfiguration
from headrace.model.streams import Stream, new_stream, start_deleting, started
from headrace.ports.metadata_store import Check, Record

_ATTEMPTS_MAX = 12
"""Reads of a stream's record in one call: a deletion needs five if no other process works on the stream."""


def ensure_stream(tools: Tools, scope: str, name: str, configuration: StreamConfiguration, condition: Check) -> None:
    """Create the stream unless it exists. Returns when it accepts events, unless it was sealed.

    Raises:
        WriteConflictError: the condition does not hold.
        ConflictError: other processes work on the stream; repeat.
    """
    for _ in range(_ATTEMPTS_MAX):
        record = tools.store.get(current_key(scope, name))
        stored = tools.records.stored(record)
        if stored is None:
            _accept_creation(tools, scope, name, configuration, record, condition)
        elif not _finish_pending(tools, stored.stream):
            return
    raise _busy(scope, name)


def ensure_no_stream(tools: Tools, scope: str, name: str, condition: Check) -> None:
    """Seal and delete the stream with all its segments, if it exists. Raises as `ensure_stream` does."""
    for _ in range(_ATTEMPTS_MAX):
        stored = tools.records.find(scope, name)
        if stored is None:
            return
        if not _finish_pending(tools, stored.stream):
            _accept_removal(tools, stored, condition)
    raise _busy(scope, name)


def _finish_pending(tools: Tools, stream: Stream) -> bool:
    """Complete the operation that runs on the stream; whether there was one."""
    if stream.pending is None:
        return False
    run_request(tools, stream.scope, stream.name, stream.pending)
    return True


def _accept_creation(
    tools: Tools,
    scope: str,
    name: str,
    configuration: StreamConfiguration,
    tombstone: Record | None,
    condition: Check,
) -> None:
    first_number = first_segment_number(tombstone)
    now_ms = tools.clock.now_ms()
    stream = new_stream(scope, name, configuration, first_number, now_ms)
    write, _ = create_intent(stream, now_ms)
    tools.store.write(condition, *create_current(stream, tombstone), *create_epoch(stream, stream.epoch), write)


def _accept_removal(tools: Tools, stored: StoredStream, condition: Check) -> None:
    if stored.stream.state.is_sealed:
        after = start_deleting(stored.stream, stored.version)
    else:
        after = started(stored.stream, stored.version, RequestKind.SEAL_STREAM)
    write, _ = create_intent(after, tools.clock.now_ms())
    tools.records.replace(stored, after, write, condition)


def _busy(scope: str, name: str) -> ConflictError:
    return ConflictError(f"stream {scope}/{name} is busy: others are working on it", details={"stream": name})

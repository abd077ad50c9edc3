"""Update the configuration of a stream: send the rate to its segments, index new tags, put it in force, clean up.

If the minimum was raised, the update then adds segments (`steps/grow_stream.py`). At last it removes the index entries
of removed tags. The entry of a tag is written before the tag is in force, and removed after it. So a list by a tag that
the stream keeps always contains the stream.

An update can be rolled back until its configuration is in force. Segments that got the rate of such an update keep it
until they get another.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from headrace.api.streams import StreamUpdate
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import Operation, Rollback, Step, Submit, Tools, Undo
from headrace.controller.steps.resources import STREAM, find_running, undo_on_stream
from headrace.controller.steps.stream_segments import GROW_STEPS, scale_rate
from headrace.metadata.stream import (
    configuration_fields,
    create_configuration_update,
    decode_configuration,
    delete_configuration_update,
)
from headrace.metadata.stream_indexes import index_tags, unindex_tags, writes_of_update
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.model.errors import ConflictError, HeadraceError, NotFoundError, SealedError
from headrace.model.log_classes import LogClass
from headrace.model.names import segment_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_configuration import (
    ConfigurationUpdate,
    StreamConfiguration,
    check_configuration_version,
    check_log_class,
)
from headrace.model.streams import Stream, completed, configured, is_in_force, started, update_rolled_back
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentScaleRate


def accept(
    acceptance: Acceptance,
    scope: str,
    stream: str,
    configuration: StreamConfiguration,
    expected_version: int | None = None,
    log_class: LogClass | None = None,
) -> StreamUpdate:
    """Accept another configuration; raises as `StreamService.update_stream` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, stream, configuration, expected_version, log_class))


def _accept(
    acceptance: Acceptance,
    scope: str,
    name: str,
    configuration: StreamConfiguration,
    expected_version: int | None,
    log_class: LogClass | None,
) -> StreamUpdate:
    stored = acceptance.streams.get(scope, name)
    present = stored.stream.configuration.log_class
    check_log_class(stored.stream.scoped_name, present, log_class)
    configuration = replace(configuration, log_class=present)
    if stored.stream.has_accepted(RequestKind.UPDATE_STREAM):
        running = acceptance.streams.configuration_update(stored.stream)
        if running is None:
            raise ConflictError(f"the update of {stored.stream.scoped_name} has just ended: repeat the request")
        if running.after == configuration and expected_version in (None, running.version - 1):
            return StreamUpdate(stored.stream.shown_state, running.version)
    version = stored.stream.configuration_version
    if expected_version == version - 1 and stored.stream.configuration == configuration:
        return StreamUpdate(stored.stream.shown_state, version)  # the answer to the first request was lost
    check_configuration_version(stored.stream.scoped_name, version, expected_version)
    updating = started(stored.stream, stored.version, RequestKind.UPDATE_STREAM)
    update = ConfigurationUpdate(updating.configuration, configuration, updating.configuration_version + 1)
    acceptance.change_stream(stored, updating, create_configuration_update(updating, update))
    return StreamUpdate(updating.shown_state, update.version)


def _send_rate(tools: Tools, stored: StoredStream) -> StoredStream | None:
    """The first step, because it needs segment stores: if it fails for good, the update can still be rolled back."""
    update = _running(tools, stored)
    if is_in_force(stored.stream, update) or not update.changes_rate:
        return None
    rate = scale_rate(update.after.scaling)
    try:
        for name in _active_names(stored.stream):
            tools.segment_stores.update_segment_policy(name, rate)
    except HeadraceError:
        _replace_late_rate(tools, stored, rate)  # some of the requests may have been carried out
        raise
    return _replace_late_rate(tools, stored, rate)


def _replace_late_rate(tools: Tools, stored: StoredStream, sent: SegmentScaleRate) -> StoredStream | None:
    """Send the present rate, if the update ended before its rate was sent. Returns the present stream.

    The process may have stalled before its requests, while others completed the update, and later ones. A request has
    no version by which a store could refuse it. So the stream is read until the rate that was sent last is the present
    one. One read if the update still runs. If the process dies before it, a late rate stays until the next update.
    """
    while (present := tools.records.find(stored.stream.scope, stored.stream.name)) is not None:
        if present.stream.pending == stored.stream.pending:
            break
        rate = _present_rate(tools, present.stream)
        if rate == sent:
            break
        if rate is not None:
            for name in _active_names(present.stream):
                with suppress(NotFoundError, SealedError):  # replaced at this moment, so its rate does not matter
                    tools.segment_stores.update_segment_policy(name, rate)
            sent = rate
    return present


def _present_rate(tools: Tools, stream: Stream) -> SegmentScaleRate | None:
    """The rate of the update that runs, or else the one in force; None if an update has just ended: read again."""
    if stream.pending is None or stream.pending.kind is not RequestKind.UPDATE_STREAM:
        return scale_rate(stream.configuration.scaling)
    update = tools.records.configuration_update(stream)
    return None if update is None else scale_rate(update.after.scaling)


def _active_names(stream: Stream) -> list[str]:
    return [segment_name(stream.scope, stream.name, segment.segment_id) for segment in stream.epoch.segments]


def _index_added_tags(tools: Tools, stored: StoredStream) -> None:
    update = _running(tools, stored)
    if not is_in_force(stored.stream, update):
        index_tags(tools.records, stored, update.added_tags)


def _put_in_force(tools: Tools, stored: StoredStream) -> None:
    update = _running(tools, stored)
    if not is_in_force(stored.stream, update):
        writes = writes_of_update(tools.records, stored.stream, update.after)
        tools.records.replace(stored, configured(stored.stream, update), *writes)


def _unindex_removed_tags(tools: Tools, stored: StoredStream) -> None:
    unindex_tags(tools.records, stored, _running(tools, stored).removed_tags)


def _close(tools: Tools, stored: StoredStream) -> None:
    stream = stored.stream
    tools.records.replace(
        stored,
        completed(stream),
        delete_configuration_update(stream),
        delete_intent(stream),
    )


def _running(tools: Tools, stored: StoredStream) -> ConfigurationUpdate:
    """The running update; raises ConflictError if it was completed after `stored` was read, and another may run."""
    update = tools.records.configuration_update(stored.stream)
    if update is None or update.version > stored.stream.configuration_version + 1:
        raise ConflictError(f"another process completed the update of {stored.stream.scoped_name}: reading again")
    return update


def _undo(store: MetadataStore, scope: str, name: str, request: PendingRequest) -> Undo:
    records = StreamRecords(store)
    stored = find_running(records, scope, name, request)
    update = records.configuration_update(stored.stream)
    if update is None:
        raise ConflictError(f"the update of {stored.stream.scoped_name} has just ended")
    return undo_on_stream(
        records,
        stored,
        update_rolled_back(stored.stream, update),
        delete_configuration_update(stored.stream),
        parameters={"configuration": configuration_fields(update.after)},
        added_tags=update.added_tags,
    )


def _replay(parameters: Mapping[str, Any]) -> Submit:
    configuration = decode_configuration(parameters["configuration"])
    return lambda acceptance, scope, stream: accept(acceptance, scope, stream, configuration)


UPDATE_STREAM = Operation(
    RequestKind.UPDATE_STREAM,
    STREAM,
    (
        Step("teach the rate", _send_rate),
        Step("index added tags", _index_added_tags),
        Step("put in force", _put_in_force),
        *GROW_STEPS,
        Step("unindex removed tags", _unindex_removed_tags),
        Step("close", _close),
    ),
    Rollback(_undo, _replay),
)

"""Update a stream's configuration: teach its segments the rate, index new tags, put it in force, then what follows.

What follows is more segments if the minimum was raised (grow_stream.py), and the end of tags that were taken away. A
tag's index entry is there before the tag is in force and goes after the tag has: whoever lists by a tag that the
stream keeps finds it all the time.
"""

from __future__ import annotations

from headrace.controller.steps.grow_stream import GROW_STEPS
from headrace.controller.steps.segment_creation import scale_rate
from headrace.controller.workflow import Step, Tools, Workflow
from headrace.metadata import keys
from headrace.metadata.stream_indexes import index_tags, unindex_tags, writes_of_update
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.configuration_updates import ConfigurationUpdate
from headrace.model.errors import ConflictError
from headrace.model.names import segment_name
from headrace.model.requests import RequestKind
from headrace.model.streams import completed, configured, is_in_force
from headrace.ports.metadata_store import Delete


def _teach_rate(tools: Tools, stored: StoredStream) -> None:
    """First, since it is the step that needs segment stores: up to the next ones an update can still be given up."""
    update = _running(tools, stored)
    if not is_in_force(stored.stream, update) and update.changes_rate:
        rate = scale_rate(update.after.scaling)
        for segment in stored.stream.epoch.segments:
            name = segment_name(stored.stream.scope, stored.stream.name, segment.segment_id)
            tools.segment_stores.update_segment_policy(name, rate)


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
        Delete(keys.configuration_update_key(stream.scope, stream.name), None),
        delete_intent(stream),
    )


def _running(tools: Tools, stored: StoredStream) -> ConfigurationUpdate:
    """The update on its way. It is gone only if it ended after `stored` was read."""
    update = tools.records.configuration_update(stored.stream)
    if update is None:
        raise ConflictError(f"the update of {stored.stream.scoped_name} was done by somebody else: reading again")
    return update


UPDATE_STREAM = Workflow(
    RequestKind.UPDATE_STREAM,
    (
        Step("teach the rate", _teach_rate),
        Step("index added tags", _index_added_tags),
        Step("put in force", _put_in_force),
        *GROW_STEPS,
        Step("unindex removed tags", _unindex_removed_tags),
        Step("close", _close),
    ),
)

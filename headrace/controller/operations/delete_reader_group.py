"""Delete a reader group: its subscriptions, its state stream, then its records."""

from __future__ import annotations

from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.group_streams import change_group, ensure_no_stream, unsubscribe
from headrace.controller.steps.resources import READER_GROUP
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup
from headrace.model.reader_groups import ReaderGroup, ReaderGroupState, check_identity, start_deleting
from headrace.model.requests import RequestKind


def accept(acceptance: Acceptance, scope: str, group: str, group_id: str) -> ReaderGroup:
    """Accept the deletion; raises as `ReaderGroupService.delete_reader_group` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, group, group_id))


def _accept(acceptance: Acceptance, scope: str, name: str, group_id: str) -> ReaderGroup:
    stored = ReaderGroupRecords(acceptance.store).get(scope, name)
    if stored.group.state is ReaderGroupState.DELETING:
        check_identity(stored.group, group_id)
        return stored.group
    return change_group(acceptance, stored, start_deleting(stored.group, group_id, stored.version))


def _leave_all_streams(tools: Tools, stored: StoredGroup) -> None:
    """A deletion is accepted only if no update runs, so the group subscribes to the streams of its configuration."""
    unsubscribe(tools, stored, stored.group.configuration.subscribed)


def _delete_state_stream(tools: Tools, stored: StoredGroup) -> None:
    ensure_no_stream(tools, stored.group.scope, stored.group.state_stream, stored.unchanged)


def _forget(tools: Tools, stored: StoredGroup) -> None:
    ReaderGroupRecords(tools.store).replace_with_tombstone(stored)


DELETE_READER_GROUP = Operation(
    RequestKind.DELETE_READER_GROUP,
    READER_GROUP,
    (
        Step("leave all streams", _leave_all_streams),
        Step("delete state stream", _delete_state_stream),
        Step("forget", _forget),
    ),
    rollback=MUST_COMPLETE,
)

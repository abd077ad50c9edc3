"""Create a reader group: its state stream and its subscriptions, then it is ACTIVE."""

from __future__ import annotations

from headrace.controller.acceptance import NO_RULES, Acceptance, CutRules
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.group_streams import OPEN, SUBSCRIBE, check_streams, ensure_stream, stream_keys
from headrace.controller.steps.resources import READER_GROUP
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup, reader_group_key, stored_group
from headrace.metadata.scope import creation_lock_key, keep_scope, no_such_scope, scope_exists, scope_guard_key
from headrace.model.errors import ConflictError
from headrace.model.reader_groups import ReaderGroup, ReaderGroupConfiguration, ReaderGroupState, new_reader_group
from headrace.model.requests import RequestKind


def accept(
    acceptance: Acceptance,
    scope: str,
    group: str,
    group_id: str,
    configuration: ReaderGroupConfiguration,
    rules: CutRules = NO_RULES,
) -> ReaderGroup:
    """Accept a new group; raises as `ReaderGroupService.create_reader_group` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, group, group_id, configuration, rules))


def _accept(
    acceptance: Acceptance,
    scope: str,
    name: str,
    group_id: str,
    configuration: ReaderGroupConfiguration,
    rules: CutRules,
) -> ReaderGroup:
    wanted = [scope_guard_key(scope), creation_lock_key(scope, name), reader_group_key(scope, name)]
    guard, lock, current, *streams = acceptance.store.get_many(wanted + stream_keys(configuration.streams))
    if guard is None or not scope_exists(guard):
        raise no_such_scope(scope)
    stored = stored_group(current)
    if stored is not None:
        if stored.group.state is ReaderGroupState.DELETING:
            raise ConflictError(f"reader group {scope}/{name} is being deleted: repeat when it is gone")
        return stored.group
    check_streams(acceptance, configuration.streams, streams, rules)
    version = 0 if current is None else current.version + 1
    created = new_reader_group(scope, name, group_id, configuration, version)
    intent = acceptance.intent(scope, name, created.pending)
    ReaderGroupRecords(acceptance.store).create(created, current, intent, *keep_scope(scope, name, guard, lock))
    acceptance.send(intent)
    return created


def _create_state_stream(tools: Tools, stored: StoredGroup) -> None:
    group = stored.group
    ensure_stream(tools, group.scope, group.state_stream, group.state_stream_configuration, stored.unchanged)


CREATE_READER_GROUP = Operation(
    RequestKind.CREATE_READER_GROUP,
    READER_GROUP,
    (
        Step("create state stream", _create_state_stream),
        SUBSCRIBE,
        OPEN,
    ),
    rollback=MUST_COMPLETE,
)

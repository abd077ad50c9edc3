"""Update or reset a reader group: the next generation, with a renewed subscription to each of its streams."""

from __future__ import annotations

from headrace.controller.acceptance import NO_RULES, Acceptance, CutRules
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.group_streams import (
    OPEN,
    SUBSCRIBE,
    change_group,
    check_streams,
    stream_keys,
    unsubscribe,
)
from headrace.controller.steps.resources import READER_GROUP
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup
from headrace.model.reader_groups import ReaderGroup, ReaderGroupConfiguration, is_same_update, start_update
from headrace.model.requests import RequestKind


def accept(
    acceptance: Acceptance,
    scope: str,
    group: str,
    group_id: str,
    generation: int,
    configuration: ReaderGroupConfiguration | None,
    rules: CutRules = NO_RULES,
) -> ReaderGroup:
    """Accept another configuration, or a reset with None; raises as the methods of `ReaderGroupService` do."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, group, group_id, generation, configuration, rules))


def _accept(
    acceptance: Acceptance,
    scope: str,
    name: str,
    group_id: str,
    generation: int,
    configuration: ReaderGroupConfiguration | None,
    rules: CutRules,
) -> ReaderGroup:
    """A reset cannot be distinguished from an older update, so a repeated reset is rejected."""
    stored = ReaderGroupRecords(acceptance.store).get(scope, name)
    if configuration is not None and is_same_update(stored.group, group_id, generation, configuration):
        return stored.group
    wanted = configuration or stored.group.configuration
    updated = start_update(stored.group, group_id, generation, wanted, stored.version)
    known = frozenset(stored.group.configuration.streams)
    changed = [stream for stream in wanted.streams if stream not in known]
    if changed:
        records = acceptance.store.get_many(stream_keys(changed))
        check_streams(acceptance, changed, records, rules)
    return change_group(acceptance, stored, updated)


def _leave_streams(tools: Tools, stored: StoredGroup) -> None:
    unsubscribe(tools, stored, stored.group.leaving)


UPDATE_READER_GROUP = Operation(
    RequestKind.UPDATE_READER_GROUP,
    READER_GROUP,
    (
        SUBSCRIBE,
        Step("leave streams", _leave_streams),
        OPEN,
    ),
    rollback=MUST_COMPLETE,
)

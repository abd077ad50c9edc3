"""Every kind of request has exactly one operation, which decides each part of it."""

from __future__ import annotations

from dataclasses import fields

import pytest
from accepted_requests import ACCEPT_ON_STREAM

from headrace.controller.engine import MUST_COMPLETE, Operation
from headrace.controller.operations.registry import ALL_OPERATIONS, OPERATIONS
from headrace.controller.operations.seal_stream import SEAL_STREAM
from headrace.model.requests import RequestKind, ResourceKind
from headrace.model.stream_state import STREAM_OPERATIONS


def test_every_kind_of_request_has_one_operation():
    assert sorted(operation.kind for operation in ALL_OPERATIONS) == sorted(RequestKind)


@pytest.mark.parametrize("kind", RequestKind)
def test_an_operation_changes_the_resource_of_its_kind(kind: RequestKind):
    assert OPERATIONS[kind].resource.kind is kind.resource
    assert OPERATIONS[kind].steps


@pytest.mark.parametrize("left_out", [field.name for field in fields(Operation)])
def test_an_operation_leaves_no_part_undecided(left_out: str):
    parts = {field.name: getattr(SEAL_STREAM, field.name) for field in fields(Operation)}
    assert Operation(**parts) == SEAL_STREAM
    del parts[left_out]
    with pytest.raises(TypeError):
        Operation(**parts)


def test_only_these_requests_are_rolled_back():
    assert {kind for kind, operation in OPERATIONS.items() if operation.rollback is not MUST_COMPLETE} == {
        RequestKind.SCALE_STREAM,
        RequestKind.UPDATE_STREAM,
        RequestKind.TRUNCATE_STREAM,
    }


def test_the_rules_and_the_tests_know_every_stream_operation():
    on_streams = {kind for kind in OPERATIONS if kind.resource is ResourceKind.STREAM}
    assert set(STREAM_OPERATIONS) == on_streams
    assert {*ACCEPT_ON_STREAM, RequestKind.COMMIT_TRANSACTIONS} == on_streams

"""Errors as HTTP responses."""

from __future__ import annotations

import pytest

from functions import error_responses
from headrace.model import errors


@pytest.mark.parametrize("kind", errors.error_classes().values(), ids=lambda kind: kind.__name__)
def test_status_and_shape(kind: type[errors.HeadraceError]):
    error = kind("what was wrong", details={"segment": 7})
    assert error_responses.status_of(error) == kind.reported_as.http_status
    body = error_responses.error_body(error)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "retry", "details"}
    assert body["error"]["code"] == kind.code
    assert body["error"]["retry"] == kind.retry


def test_specific_code_and_details_are_told():
    error = errors.IllegalStateError("not empty", details={"scope": "s"}, code="scope_not_empty")
    assert error_responses.error_body(error)["error"] == {
        "code": "scope_not_empty",
        "message": "not empty",
        "retry": "never",
        "details": {"scope": "s"},
    }


def test_nothing_of_the_inside_is_told_with_500():
    error = errors.CorruptError("record cluster/container/0001 has no port", details={"key": "secret"}, code="inner")
    body = error_responses.error_body(error)["error"]
    assert "record" not in body["message"]
    assert body["code"] == "corrupt"
    assert body["details"] == {}


def test_a_subclass_that_is_not_listed_is_answered_as_its_parent():
    class FullDiskError(errors.UnavailableError):
        code = "full_disk"

    assert error_responses.status_of(FullDiskError("full")) == 503

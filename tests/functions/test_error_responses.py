"""One table from the error tree to HTTP."""

from __future__ import annotations

import pytest

from functions import error_responses
from headrace.model import errors

CONTRACT = {
    errors.InvalidRequestError: 400,
    errors.UnauthorizedError: 403,
    errors.NotFoundError: 404,
    errors.AlreadyExistsError: 409,
    errors.IllegalStateError: 412,
    errors.SealedError: 412,
    errors.TruncatedError: 410,
    errors.ConflictError: 409,
    errors.FencedError: 421,
    errors.ThrottledError: 429,
    errors.UnavailableError: 503,
    errors.OutOfTimeError: 503,
    errors.CorruptError: 500,
    errors.HeadraceError: 500,
}


def test_every_class_of_the_tree_is_in_the_table():
    tree = {kind for kind in errors.error_classes().values() if kind.__module__ == errors.__name__}
    assert tree == set(CONTRACT)
    assert tree <= set(error_responses.STATUS_BY_CLASS)


@pytest.mark.parametrize(("kind", "status"), CONTRACT.items(), ids=lambda value: getattr(value, "__name__", value))
def test_status_and_shape(kind: type[errors.HeadraceError], status: int):
    error = kind("what was wrong", details={"segment": 7})
    assert error_responses.status_of(error) == status
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

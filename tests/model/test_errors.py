"""The error tree: codes, what a caller may do, and that errors travel between processes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import astuple

import pytest

from headrace.model import errors
from headrace.ports.metadata_store import Key, Record, WriteConflictError


@pytest.mark.parametrize("kind", errors.error_classes().values(), ids=lambda kind: kind.__name__)
def test_an_error_survives_a_process_boundary(kind: type[errors.HeadraceError]):
    error = kind("what was wrong", details={"field": 1}, code="special")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.details, copy.specific_code, str(copy)) == (
        "what was wrong",
        {"field": 1},
        "special",
        "what was wrong",
    )


def test_the_code_of_the_class_is_the_default():
    assert errors.SealedError("x").specific_code == "sealed"


CONTRACT = {
    "internal": ("HeadraceError", "never", 500, "INTERNAL", 1),
    "invalid_request": ("InvalidRequestError", "never", 400, "INVALID_ARGUMENT", 1),
    "unauthorized": ("UnauthorizedError", "never", 403, "PERMISSION_DENIED", 1),
    "not_found": ("NotFoundError", "never", 404, "NOT_FOUND", 3),
    "already_exists": ("AlreadyExistsError", "never", 409, "ALREADY_EXISTS", 4),
    "illegal_state": ("IllegalStateError", "never", 412, "OUT_OF_RANGE", 1),
    "sealed": ("SealedError", "never", 412, "OUT_OF_RANGE", 1),
    "frozen": ("FrozenError", "never", 412, "UNAVAILABLE", 1),
    "truncated": ("TruncatedError", "never", 410, "OUT_OF_RANGE", 1),
    "conflict": ("ConflictError", "now", 409, "FAILED_PRECONDITION", 4),
    "fenced": ("FencedError", "elsewhere", 421, "UNAVAILABLE", 5),
    "throttled": ("ThrottledError", "later", 429, "RESOURCE_EXHAUSTED", 5),
    "unavailable": ("UnavailableError", "later", 503, "UNAVAILABLE", 5),
    "out_of_time": ("OutOfTimeError", "later", 503, "UNAVAILABLE", 6),
    "corrupt": ("CorruptError", "never", 500, "INTERNAL", 1),
}
"""By code: the class, whether a repetition can succeed, the HTTP status, the gRPC status and the exit code."""

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HeadraceError)]


def test_codes_and_reports_never_change():
    # Other modules give their own errors codes of their own; the tree of the model is what is pinned here.
    pinned = {
        kind.code: (kind.__name__, kind.retry, *astuple(kind.reported_as))
        for kind in errors.error_classes().values()
        if kind.__module__ == errors.__name__
    }
    assert pinned == CONTRACT


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_each_class_says_all_about_itself(kind: type[errors.HeadraceError]):
    assert {"code", "reported_as", "__doc__"} <= vars(kind).keys(), "it would be reported as its parent"
    assert kind.__name__ in errors.__all__
    assert re.search(rf"^[│├└─ ]*{kind.__name__}\b", errors.__doc__ or "", re.MULTILINE), "the tree at the top lacks it"


def test_a_class_is_reported_as_its_parent_without_a_row():
    assert WriteConflictError.reported_as is errors.ConflictError.reported_as


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequestError),
        (403, errors.UnauthorizedError),
        (404, errors.NotFoundError),
        (410, errors.TruncatedError),
        (412, errors.IllegalStateError),
        (421, errors.FencedError),
        (429, errors.ThrottledError),
        (503, errors.UnavailableError),
        (409, errors.HeadraceError),
        (418, errors.HeadraceError),
        (500, errors.HeadraceError),
    ],
)
def test_a_status_tells_the_most_general_class(status: int, kind: type[errors.HeadraceError]):
    assert errors.class_of_status(status) is kind


def test_errors_of_ports_do_not_take_over_a_code():
    """WriteConflictError has more to say, but on the wire it is a conflict like any other."""
    assert issubclass(WriteConflictError, errors.ConflictError)
    assert errors.error_classes()["conflict"] is errors.ConflictError


def test_a_write_conflict_survives_a_process_boundary():
    record = Record(Key("p", "s"), 3, {"a": 1})
    copy = pickle.loads(pickle.dumps(WriteConflictError("lost", {0: record, 2: None})))
    assert (copy.message, copy.failed, copy.specific_code) == ("lost", {0: record, 2: None}, "conflict")


@pytest.mark.parametrize(
    ("made", "code", "said"),
    [
        (errors.source_incomplete, "source_incomplete", "may lack bytes that were acknowledged"),
        (errors.segment_quarantined, "segment_quarantined", "accepts no more bytes"),
    ],
)
def test_a_state_of_a_segment_has_a_code_of_its_own(
    made: Callable[[str], errors.IllegalStateError], code: str, said: str
):
    error = made("s/t/0")
    assert type(error) is errors.IllegalStateError
    assert (error.specific_code, error.details) == (code, {"segment": "s/t/0"})
    assert error.message.startswith("segment s/t/0 ")
    assert said in error.message

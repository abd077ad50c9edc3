"""The error tree: codes, what a caller may do, and that errors travel between processes."""

from __future__ import annotations

import pickle

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


def test_codes_are_unique_and_stable():
    # Other modules give their own errors codes of their own; the tree of the model is what is pinned here.
    tree = {code: kind for code, kind in errors.error_classes().items() if kind.__module__ == errors.__name__}
    assert {code: (kind.__name__, kind.retry) for code, kind in tree.items()} == {
        "internal": ("HeadraceError", "never"),
        "invalid_request": ("InvalidRequestError", "never"),
        "unauthorized": ("UnauthorizedError", "never"),
        "not_found": ("NotFoundError", "never"),
        "already_exists": ("AlreadyExistsError", "never"),
        "illegal_state": ("IllegalStateError", "never"),
        "sealed": ("SealedError", "never"),
        "truncated": ("TruncatedError", "never"),
        "conflict": ("ConflictError", "now"),
        "fenced": ("FencedError", "elsewhere"),
        "throttled": ("ThrottledError", "later"),
        "unavailable": ("UnavailableError", "later"),
        "out_of_time": ("OutOfTimeError", "later"),
        "corrupt": ("CorruptError", "never"),
    }


def test_errors_of_ports_do_not_take_over_a_code():
    """WriteConflictError has more to say, but on the wire it is a conflict like any other."""
    assert issubclass(WriteConflictError, errors.ConflictError)
    assert errors.error_classes()["conflict"] is errors.ConflictError


def test_a_write_conflict_survives_a_process_boundary():
    record = Record(Key("p", "s"), 3, {"a": 1})
    copy = pickle.loads(pickle.dumps(WriteConflictError("lost", {0: record, 2: None})))
    assert (copy.message, copy.failed, copy.specific_code) == ("lost", {0: record, 2: None}, "conflict")

"""Commit sets: what is allowed, the states of a writer, and labels with epochs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.commit_sets import (
    EPOCH_MAX,
    MEMBERS_PER_WRITE,
    SET_STREAMS_MAX,
    SET_TRANSACTIONS_MAX,
    CommitWriter,
    PendingSet,
    begun,
    check_set_epoch,
    check_set_members,
    check_set_writer,
    decided,
    forgotten,
    is_committed,
    member_chunks,
    refused,
)
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.transactions import LABEL_CHARACTERS_MAX, check_label, has_prefix, labelled_epoch, transaction_id_of
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX


def test_the_decision_on_the_largest_set_is_one_transaction():
    """The writer, a part and an entry in the order for each stream, and the check of the home stream with its tags."""
    assert 1 + 2 * SET_STREAMS_MAX <= WRITES_PER_TRANSACTION_MAX
    assert 1 + SET_STREAMS_MAX + 4 <= WRITES_PER_TRANSACTION_MAX
    assert MEMBERS_PER_WRITE <= WRITES_PER_TRANSACTION_MAX


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"t": []},
        {"t": [1, 1]},
        {"t": range(SET_TRANSACTIONS_MAX + 1)},
        {f"t{number}": [number] for number in range(SET_STREAMS_MAX + 1)},
    ],
    ids=["none", "an empty stream", "twice the same", "too many", "too many streams"],
)
def test_a_set_has_a_size(members: dict[str, list[int]]):
    with pytest.raises(InvalidRequestError) as error:
        check_set_members(members)
    assert error.value.specific_code == "invalid_commit_set"


def test_members_keep_their_order_within_an_epoch():
    late, later = transaction_id_of(1, 9), transaction_id_of(1, 4)
    assert check_set_members({"u": [3, 1], "t": [2], "v": []}) == {"t": (2,), "u": (3, 1)}
    assert check_set_members({"u": [late, 3, later, 1]}) == {"u": (3, 1, late, later)}
    many = check_set_members({"t": range(SET_TRANSACTIONS_MAX)})
    assert [one for _, chunk in member_chunks(many) for one in chunk] == list(many["t"])


@pytest.mark.parametrize("writer", ["", "a b", "a/b", "ä", "w" * 251, "w\n"])
def test_what_is_no_writer(writer: str):
    with pytest.raises(InvalidRequestError):
        check_set_writer(writer)


@pytest.mark.parametrize("epoch", [-1, EPOCH_MAX + 1])
def test_what_is_no_epoch(epoch: int):
    with pytest.raises(InvalidRequestError):
        check_set_epoch(epoch)


def test_the_bounds_are_allowed():
    assert check_set_writer("spark:0f-9.A_z" + "w" * 236)
    assert [check_set_epoch(one) for one in (0, EPOCH_MAX)] == [0, EPOCH_MAX]


def test_a_writer_decides_one_set_after_another():
    fresh, first, second = CommitWriter("w"), PendingSet("a", 5, ("t",)), PendingSet("b", 9, ("t", "u"))
    waiting = begun(fresh, first)
    assert not is_committed(waiting, 5)
    after = decided(waiting, 99)
    assert after == CommitWriter("w", 5, "a", 99)
    assert [is_committed(after, epoch) for epoch in (0, 5, 6)] == [True, True, False]
    assert forgotten(refused(begun(after, second))) == after


def test_no_state_of_a_writer_is_left_out():
    pending = begun(CommitWriter("w", 5, "a", 99), PendingSet("b", 9, ("t",)))
    for wrong in (
        lambda: begun(pending, PendingSet("c", 10, ("t",))),
        lambda: begun(CommitWriter("w", 5, "a", 99), PendingSet("b", 5, ("t",))),
        lambda: decided(refused(pending), 100),
        lambda: forgotten(pending),
        lambda: decided(CommitWriter("w"), 100),
    ):
        with pytest.raises(CorruptError):
            wrong()


@pytest.mark.parametrize(
    ("label", "epoch"),
    [
        ("q/7", 7),
        ("q/0", 0),
        ("q/7/part/3", 7),
        ("q/7/", 7),
        ("q/07", None),
        ("q/", None),
        ("q/x", None),
        ("q/-1", None),
        ("q/7x", None),
        ("q7", None),
        ("r/7", None),
        ("qq/7", None),
        (None, None),
    ],
)
def test_the_epoch_in_a_label(label: str | None, epoch: int | None):
    assert labelled_epoch(label, "q") == epoch


@given(st.integers(0, EPOCH_MAX), st.text("ab/:.", min_size=1, max_size=20), st.text("ab/:.", max_size=20))
def test_an_epoch_is_found_behind_any_prefix(epoch: int, prefix: str, rest: str):
    assert labelled_epoch(f"{prefix}/{epoch}", prefix) == epoch
    assert labelled_epoch(f"{prefix}/{epoch}/{rest}", prefix) == epoch


@pytest.mark.parametrize("label", ["", "a b", "ä", "l" * (LABEL_CHARACTERS_MAX + 1), "a\n"])
def test_what_is_no_label(label: str):
    with pytest.raises(InvalidRequestError) as error:
        check_label(label)
    assert error.value.specific_code == "invalid_label"


def test_the_beginning_of_a_label():
    assert check_label("l" * LABEL_CHARACTERS_MAX)
    assert has_prefix("job/7/x", "job/7")
    assert not has_prefix("job/7", "job/7/")
    assert not has_prefix(None, "j")

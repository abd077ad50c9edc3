"""Commit sets: what is allowed, the states of a writer, and labels with epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import transactions
from headrace.model.commit_sets import (
    EPOCH_MAX,
    MEMBERS_PER_WRITE,
    NOTE_BYTES_MAX,
    SET_STREAMS_MAX,
    SET_TRANSACTIONS_MAX,
    SETS_PER_RUN_MAX,
    TRANSACTIONS_PER_RUN_MAX,
    CommitPart,
    CommitWriter,
    PendingSet,
    PlannedRun,
    WaitingMark,
    aborted_together,
    begun,
    check_set_epoch,
    check_set_members,
    check_set_note,
    check_set_writer,
    decided,
    forgotten,
    is_committed,
    member_chunks,
    ordered,
    plan_run,
    refused,
)
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.transactions import (
    LABEL_CHARACTERS_MAX,
    CommitOrder,
    Transaction,
    check_label,
    has_prefix,
    labelled_epoch,
    reference_epoch_of,
    transaction_id_of,
)
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
        {"t": [1, 1], "u": [2]},
    ],
    ids=["none", "an empty stream", "twice the same", "too many", "too many streams", "twice the same in one stream"],
)
def test_a_set_has_a_size(members: dict[str, list[int]]):
    with pytest.raises(InvalidRequestError) as error:
        check_set_members(members)
    assert error.value.specific_code == "invalid_commit_set"


def test_members_keep_their_order_within_an_epoch():
    late, later = transaction_id_of(1, 9), transaction_id_of(1, 4)
    found = check_set_members({"u": [3, 1], "t": [2], "v": []})
    assert found == {"t": (2,), "u": (3, 1)}
    assert list(found) == ["t", "u"]
    assert list(member_chunks(found)) == [("t", (2,)), ("u", (3, 1))]
    assert check_set_members({"u": [late, 3, later, 1]}) == {"u": (3, 1, late, later)}
    many = check_set_members({"t": range(SET_TRANSACTIONS_MAX)})
    assert [transaction for _, chunk in member_chunks(many) for transaction in chunk] == list(many["t"])


@pytest.mark.parametrize("writer", ["", "a b", "a/b", "ä", "w" * 251, "w\n", ".", ".."])
def test_what_is_no_writer(writer: str):
    with pytest.raises(InvalidRequestError, match="writer") as error:
        check_set_writer(writer)
    assert error.value.specific_code == "invalid_commit_set"


@pytest.mark.parametrize("epoch", [-1, EPOCH_MAX + 1])
def test_what_is_no_epoch(epoch: int):
    with pytest.raises(InvalidRequestError) as error:
        check_set_epoch(epoch)
    assert error.value.specific_code == "invalid_commit_set"


def test_the_bounds_are_allowed():
    assert check_set_writer("spark:0f-9.A_z" + "w" * 236)
    assert [check_set_epoch(epoch) for epoch in (0, EPOCH_MAX)] == [0, EPOCH_MAX]
    assert check_set_members({"t": [5]}) == {"t": (5,)}
    assert len(check_set_members({f"t{number}": [number] for number in range(SET_STREAMS_MAX)})) == SET_STREAMS_MAX


def test_a_writer_decides_one_set_after_another():
    fresh, first, second = CommitWriter("w"), PendingSet("a", 5, ("t",)), PendingSet("b", 9, ("t", "u"))
    waiting = begun(fresh, first)
    assert not is_committed(waiting, 5)
    assert not is_committed(None, 5)
    after = decided(waiting, 99)
    assert after == CommitWriter("w", 5, "a", 99)
    assert [is_committed(after, epoch) for epoch in (0, 5, 6)] == [True, True, False]
    assert forgotten(refused(begun(after, second))) == after


def test_a_note_comes_and_goes_with_its_set():
    noted = decided(begun(CommitWriter("w"), PendingSet("a", 5, ("t",), note="at 7")), 99)
    assert noted == CommitWriter("w", 5, "a", 99, note="at 7")
    refused_later = forgotten(refused(begun(noted, PendingSet("b", 6, ("t",), note="at 9"))))
    assert refused_later == noted
    assert decided(begun(noted, PendingSet("b", 6, ("t",))), 100).note is None


def test_a_note_has_a_size():
    assert check_set_note(None) is None
    assert check_set_note("é" * (NOTE_BYTES_MAX // 2)) == "é" * (NOTE_BYTES_MAX // 2)
    for wrong in ("é" * (NOTE_BYTES_MAX // 2) + "e", "\ud800"):
        with pytest.raises(InvalidRequestError, match="the note of a commit set") as error:
            check_set_note(wrong)
        assert error.value.specific_code == "invalid_commit_set"


def test_decided_part_has_the_order_of_its_first_member():
    part = CommitPart("a", "h", "w", (8, 4))
    assert ordered(part, 7) == CommitPart("a", "h", "w", (8, 4), CommitOrder(7, group=8))


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


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[WaitingMark], dict[str, CommitPart]]:
    """Marks of single transactions and of sets, in order, with the parts of the sets; ids are of a few epochs."""
    marks: list[WaitingMark] = []
    parts: dict[str, CommitPart] = {}
    sizes = draw(st.lists(st.one_of(st.none(), st.integers(1, 130)), min_size=1, max_size=25))
    for number, size in enumerate(sizes):
        epochs = draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
        ids = sorted(transaction_id_of(epochs[index % len(epochs)], number << 10 | index) for index in range(size or 1))
        order = CommitOrder(number, ids[0])
        if size is None:
            marks.append(WaitingMark(ids[0], 5, order))
            continue
        parts[f"set-{number}"] = CommitPart(f"set-{number}", "h", "w", tuple(ids), order)
        marks.append(WaitingMark(ids[0], 5, order, f"set-{number}"))
    return marks, parts


def _after(marks: list[WaitingMark], run: PlannedRun) -> list[WaitingMark]:
    """The order after a run, as its last write leaves it."""
    rests = {run_set.mark: run_set.rest for run_set in run.sets}
    gone = set(run.transactions)
    left = [
        rests.get(mark, mark) if mark.commit_set else (None if mark.transaction_id in gone else mark) for mark in marks
    ]
    return [mark for mark in left if mark is not None]


@given(orders())
def test_runs_take_all_in_order_and_within_their_limits(case: tuple[list[WaitingMark], dict[str, CommitPart]]):
    marks, parts = case
    wanted = [
        member
        for mark in marks
        for member in (parts[mark.commit_set].members if mark.commit_set else (mark.transaction_id,))
    ]
    taken: list[int] = []
    while marks:
        run = plan_run(marks[:TRANSACTIONS_PER_RUN_MAX], parts)
        assert 1 <= len(run.transactions) <= TRANSACTIONS_PER_RUN_MAX
        assert len(run.sets) <= SETS_PER_RUN_MAX
        assert len({reference_epoch_of(transaction) for transaction in run.transactions}) == 1
        assert [run_set.rest for run_set in run.sets[:-1]] == [None] * len(run.sets[:-1]), (
            "only the last may be unfinished"
        )
        taken += run.transactions
        marks = _after(marks, run)
        for mark in marks:
            if mark.commit_set is not None:
                assert parts[mark.commit_set].members[mark.position] == mark.transaction_id
    assert taken == wanted


def _of_set(identifier: int, name: str) -> Transaction:
    return transactions.prepared(transactions.new_transaction(identifier, 10_000, 1_000, 0), name)


def _marked(identifier: int) -> Transaction:
    opened = transactions.new_transaction(identifier, 10_000, 1_000, 0)
    return transactions.marked_for_commit(opened, CommitOrder(3, identifier))


@pytest.mark.parametrize(
    ("lost", "begun", "lost_sets", "expected"),
    [
        (set(), set(), set(), ()),
        ({4}, set(), set(), (4,)),
        ({6, 4}, set(), set(), (4, 6)),
        ({6, 7}, set(), set(), (6, 7, 8)),
        ({7}, set(), set(), (7, 8)),
        ({8}, {"a"}, set(), (8,)),
        (set(), {"a"}, {"a"}, (7, 8)),
        (set(), set(), {"a"}, (7, 8)),
    ],
)
def test_what_is_aborted_together(lost: set[int], begun: set[str], lost_sets: set[str], expected: tuple[int, ...]):
    """4 and 6 were marked alone, 7 and 8 are a set."""
    marked = [_marked(4), _marked(6), _of_set(7, "a"), _of_set(8, "a")]
    assert aborted_together(marked, lost, begun, lost_sets) == expected


def test_a_released_member_is_as_it_was():
    opened = replace(transactions.new_transaction(7, 10_000, 1_000, 0), label="l")
    assert transactions.released(transactions.prepared(opened, "a")) == opened


def test_an_entry_of_a_set_keeps_its_place_between_its_parts():
    """A set that begins amid a mark of release 0.1.0 has an index."""
    mark = WaitingMark(11, 5, CommitOrder(3, 10, 1), "a", version=4)
    first = mark.after(3, 13)
    assert first == WaitingMark(13, 5, CommitOrder(3, 10, 1), "a", passed=2, version=5)
    assert (mark.position, first.position) == (1, 3)
    assert first.after(4, 14) == WaitingMark(14, 5, CommitOrder(3, 10, 1), "a", passed=3, version=6)


@pytest.mark.parametrize("by_itself", [0, 1])
def test_a_run_takes_as_much_as_it_may(by_itself: int):
    """The next entry of the order is not left for another run while there is room."""
    ids = [transaction_id_of(0, number) for number in range(TRANSACTIONS_PER_RUN_MAX + 5)]
    order = CommitOrder(1, ids[0])
    singles = [WaitingMark(identifier, 5, CommitOrder(0, identifier)) for identifier in ids[:by_itself]]
    members = tuple(ids[by_itself:])
    run = plan_run([*singles, WaitingMark(members[0], 5, order, "a")], {"a": CommitPart("a", "h", "w", members, order)})
    assert run.transactions == tuple(ids[:TRANSACTIONS_PER_RUN_MAX])
    (taken,) = run.sets
    assert taken.set_id == "a"
    assert taken.rest is not None
    assert taken.rest.transaction_id == ids[TRANSACTIONS_PER_RUN_MAX]


def test_a_run_takes_as_many_sets_as_it_may():
    orders = [CommitOrder(number, transaction_id_of(0, number)) for number in range(SETS_PER_RUN_MAX + 1)]
    parts = {str(order.number): CommitPart(str(order.number), "h", "w", (order.group or 0,), order) for order in orders}
    marks = [WaitingMark(order.group or 0, 5, order, str(order.number)) for order in orders]
    alone = transaction_id_of(0, 100)
    run = plan_run([*marks, WaitingMark(alone, 5, CommitOrder(100, alone))], parts)
    assert [run_set.set_id for run_set in run.sets] == [str(number) for number in range(SETS_PER_RUN_MAX)]
    assert run.transactions == tuple(order.group for order in orders[:-1]), "nothing behind a set that is left"


def test_set_of_another_epoch_is_left_for_the_next_run():
    first, member = transaction_id_of(0, 1), transaction_id_of(1, 2)
    order = CommitOrder(1, member)
    marks = [WaitingMark(first, 5, CommitOrder(0, first)), WaitingMark(member, 5, order, "a")]
    assert plan_run(marks, {"a": CommitPart("a", "h", "w", (member,), order)}) == PlannedRun((first,), ())

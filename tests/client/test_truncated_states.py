"""A state synchronizer whose stream was truncated by something else than a compaction, and refused truncations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.client import (
    CorruptError,
    Headrace,
    InvalidRequestError,
    RevisionedStream,
    ScalingPolicy,
    StateForm,
    StateSynchronizer,
    StreamCut,
    TruncatedError,
)

Numbers = StateSynchronizer[int, int]
FORM: StateForm[int, int] = StateForm(
    apply=lambda state, update: state + update,
    state_bytes=lambda state: b"%d" % state,
    parse_state=lambda data: int(bytes(data)),
    update_bytes=lambda update: b"%d" % update,
    parse_update=lambda data: int(bytes(data)),
)


def opened(headrace: Headrace) -> Numbers:
    return headrace.state_synchronizer("shop", "sum", FORM)


@pytest.fixture
def entries(headrace: Headrace) -> RevisionedStream:
    headrace.admin.create_stream("shop", "sum", scaling=ScalingPolicy.fixed(1))
    return headrace.revisioned_stream("shop", "sum")


@pytest.fixture
def first(entries: RevisionedStream, headrace: Headrace) -> Numbers:
    """A copy of the state 6, which an entry and three updates make."""
    synchronizer = opened(headrace)
    synchronizer.initialize(0)
    for number in (1, 2, 3):
        synchronizer.update(lambda _, number=number: [number])  # type: ignore[misc]
    return synchronizer


def _by_controller(headrace: Headrace, entries: RevisionedStream, revision: int) -> None:
    headrace.admin.truncate_stream("shop", "sum", StreamCut.of("shop", "sum", {0: revision}))


def _by_entries(headrace: Headrace, entries: RevisionedStream, revision: int) -> None:
    entries.truncate(revision)


BY = pytest.mark.parametrize("truncate", [_by_controller, _by_entries])
Truncate = Callable[[Headrace, RevisionedStream, int], None]


def refuses(synchronizer: Numbers) -> None:
    for call in (
        synchronizer.fetch,
        synchronizer.wait,
        synchronizer.compact,
        lambda: synchronizer.update(lambda _: [1]),
    ):
        with pytest.raises(TruncatedError, match=r"shop/sum was truncated.*initialize") as lost:
            call()
        assert lost.value.specific_code == "state_truncated"


@BY
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_truncated_state_is_initialized_again(
    headrace: Headrace, entries: RevisionedStream, first: Numbers, truncate: Truncate, left: int
) -> None:
    revisions = [entry.revision for entry in entries.read(0)]
    truncate(headrace, entries, revisions[-1 - left])
    second = opened(headrace)
    assert second.state is None
    refuses(second)
    assert second.initialize(100)
    assert not second.initialize(200)
    assert second.update(lambda state: [state]) == (100,)
    assert opened(headrace).state == first.fetch() == 200
    first.compact()
    first.compact()
    assert opened(headrace).state == second.fetch() == 200


def test_a_cut_inside_an_entry(headrace: Headrace, entries: RevisionedStream, first: Numbers) -> None:
    latest = entries.latest_revision()
    for revision in (latest - 20, latest - 1):
        entries.truncate(revision)
        refuses(opened(headrace))
    assert opened(headrace).initialize(5)
    assert opened(headrace).state == first.fetch() == 5


def test_a_copy_that_is_older_than_the_cut(headrace: Headrace, entries: RevisionedStream, first: Numbers) -> None:
    opened(headrace).update(lambda _: [4])
    entries.truncate(entries.latest_revision())
    refuses(first)
    assert first.initialize(7)
    assert opened(headrace).state == first.state == 7


def test_a_copy_that_is_up_to_date_restores_the_state(
    headrace: Headrace, entries: RevisionedStream, first: Numbers
) -> None:
    entries.truncate(entries.latest_revision())
    assert first.fetch() == 6
    first.update(lambda _: [1])
    refuses(opened(headrace))
    first.compact()
    assert opened(headrace).state == 7


def test_a_state_that_is_left_is_found(headrace: Headrace, entries: RevisionedStream, first: Numbers) -> None:
    (_, update, *_) = [entry.revision for entry in entries.read(0)]
    first.compact()
    mark = entries.mark()
    assert mark is not None
    assert update < mark
    entries.truncate(update)
    assert opened(headrace).state == 6
    entries.compare_and_set_mark(mark, None)
    assert opened(headrace).state == 6


def test_only_one_of_two_initializes_again(headrace: Headrace, entries: RevisionedStream, first: Numbers) -> None:
    entries.truncate(entries.latest_revision() - 9)
    second, third = opened(headrace), opened(headrace)
    assert [second.initialize(1), third.initialize(2), first.initialize(3)] == [True, False, False]
    assert second.fetch() == third.state == first.state == 1


def test_updates_of_something_else_are_corrupt(headrace: Headrace, entries: RevisionedStream) -> None:
    entries.write(b"\0\0\0\2")
    with pytest.raises(CorruptError, match="something else"):
        opened(headrace)


def test_revisions_that_a_stream_does_not_have(entries: RevisionedStream) -> None:
    entries.write(b"entry")
    latest = entries.latest_revision()
    for revision in (-1, -(1 << 63), latest + 1, (1 << 63) - 1):
        with pytest.raises(InvalidRequestError, match="shop/sum cannot be truncated at revision"):
            entries.truncate(revision)
    assert entries.oldest_revision() == 0
    entries.truncate(latest)
    entries.truncate(0)  # removed already
    assert entries.oldest_revision() == latest

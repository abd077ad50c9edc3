"""Segments of a transaction that are created on demand: noted before they are created, and touched only if noted."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import pytest
from stream_commits import all_bytes, states
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.metadata.transaction import open_key, replace_open
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.transactions import TransactionState, marked_for_abort

ABORTED, COMMITTED = TransactionState.ABORTED, TransactionState.COMMITTED


@pytest.fixture
def stream(world: StreamWorld) -> StreamWorld:
    world.create(segments=4)
    world.calls.counts.clear()
    return world


def _begin(world: StreamWorld) -> int:
    return world.transactions.create_transaction("s", "t", 60_000, on_demand=True).transaction_id


def _create(world: StreamWorld, transaction: int, *segments: int) -> None:
    world.transactions.create_segments("s", "t", transaction, segments)


def _own(world: StreamWorld, transaction: int) -> list[str]:
    text = f"#transaction.{transaction:032x}"
    return [name for name in world.bare_segment_stores.names() if name.endswith(text)]


def _code(ask: Callable[[], object]) -> str:
    with pytest.raises(HeadraceError) as refused:
        ask()
    return refused.value.specific_code


def _asked(world: StreamWorld, call: str) -> list[Sequence[str]]:
    """The names in the calls of the segment stores of a kind, from now on."""
    names: list[Sequence[str]] = []
    stores, honest = world.bare_segment_stores, getattr(world.bare_segment_stores, call)

    def record(*arguments: Sequence[str]) -> object:
        names.append(arguments[-1])
        return honest(*arguments)

    setattr(stores, call, record)
    return names


def test_only_the_wanted_segments_are_created(stream: StreamWorld):
    transaction = _begin(stream)
    assert stream.calls.counts["segment store create_segments"] == 0
    assert _own(stream, transaction) == []
    view = stream.transactions.segments_of("s", "t", transaction)
    assert (view.on_demand, len(view.segments)) == (True, 4)
    stream.calls.counts.clear()
    _create(stream, transaction, 2, 1)
    assert dict(stream.calls.counts) == {"read": 1, "write": 2, "segment store create_segments": 1}
    assert _own(stream, transaction) == [view.segments[number].transaction_segment for number in (1, 2)]
    stream.calls.counts.clear()
    _create(stream, transaction, 1)
    assert dict(stream.calls.counts) == {"read": 1}, "it is confirmed already"
    assert not stream.transactions.segments_of("s", "t", stream.begin()).on_demand


def test_a_commit_merges_what_was_created(stream: StreamWorld):
    some, none, full = _begin(stream), _begin(stream), stream.begin()
    _create(stream, some, 0)
    stream.write_in(some, 0.1, b"one")
    stream.write_in(full, 0.1, b"full")
    checked, merged = _asked(stream, "incomplete_segments"), _asked(stream, "merge_segments")
    stream.commit(some, none, full)
    assert states(stream, some, none, full) == [COMMITTED] * 3
    assert all_bytes(stream) == b"onefull"
    assert [len(names) for names in checked] == [1 + 4]
    assert [len(names) for names in merged] == [2, 1, 1, 1]
    assert len(stream.bare_segment_stores.names()) == 4


def test_an_abort_deletes_what_was_created(stream: StreamWorld):
    some, none = _begin(stream), _begin(stream)
    _create(stream, some, 3)
    deleted = _asked(stream, "delete_segments")
    for identifier in (some, none):
        stream.transactions.abort_transaction("s", "t", identifier)
    stream.drain_transactions()
    assert states(stream, some, none) == [ABORTED, ABORTED]
    assert [len(names) for names in deleted] == [1, 0]
    assert _own(stream, some) == []


def test_a_rolling_commit_of_few_segments(stream: StreamWorld):
    transaction = _begin(stream)
    _create(stream, transaction, 0)
    stream.write_in(transaction, 0.1, b"late")
    stream.scale([0], [0.0, 0.1, 0.25])
    stream.commit(transaction)
    assert states(stream, transaction) == [COMMITTED]
    assert all_bytes(stream) == b"late"


def test_a_lost_segment_that_was_created_aborts(stream: StreamWorld):
    """A segment that was never created is no loss, but one that is missing is."""
    lost, whole = _begin(stream), _begin(stream)
    for transaction in (lost, whole):
        _create(stream, transaction, 1, 2)
    stream.bare_segment_stores.delete_segment(_own(stream, lost)[0])
    stream.commit(lost, whole)
    assert states(stream, lost, whole) == [ABORTED, COMMITTED]


def test_a_segment_that_could_not_be_created_is_no_loss(stream: StreamWorld):
    """Its events were never acknowledged. The sets of other transactions that were acknowledged must be committed."""
    whole, other = _begin(stream), _begin(stream)
    for transaction in (whole, other):
        _create(stream, transaction, 0)
        stream.write_in(transaction, 0.1, b"x")
    stream.calls.refuse("segment store create_segments", UnavailableError("the store does not answer"))
    assert _code(lambda: _create(stream, whole, 1)) == "unavailable"
    stream.calls.calm()
    assert stream.commit_set([whole, other], epoch=1).new
    stream.drain_transactions()
    assert states(stream, whole, other) == [COMMITTED, COMMITTED]
    assert all_bytes(stream) == b"xx"
    assert _own(stream, whole) == []


def test_a_repetition_does_not_hide_a_loss(stream: StreamWorld):
    """The volume below a segment with events is lost, and another process continues the transaction."""
    transaction = _begin(stream)
    _create(stream, transaction, 0)
    stream.write_in(transaction, 0.1, b"lost")
    stream.bare_segment_stores.delete_segments(_own(stream, transaction))
    _create(stream, transaction, 0, 1)
    assert len(_own(stream, transaction)) == 1, "only the new one is created"
    stream.commit(transaction)
    assert states(stream, transaction) == [ABORTED]


def test_what_is_not_of_the_transaction_is_refused(stream: StreamWorld):
    transaction = _begin(stream)
    before = stream.everything()
    assert _code(lambda: _create(stream, transaction, 0, 4)) == "not_of_transaction"
    assert _code(lambda: _create(stream, transaction, 1 << 32)) == "not_of_transaction"
    assert _code(lambda: _create(stream, 0xABC, 0)) == "transaction_not_found"
    assert stream.everything() == before


def test_a_transaction_with_all_segments_needs_no_more(stream: StreamWorld):
    transaction = stream.begin()
    stream.calls.counts.clear()
    _create(stream, transaction, 0, 3)
    assert dict(stream.calls.counts) == {"read": 1}


def _end(how: str) -> Callable[[StreamWorld, int], None]:
    def abort(world: StreamWorld, transaction: int) -> None:
        world.transactions.abort_transaction("s", "t", transaction)

    def aborted(world: StreamWorld, transaction: int) -> None:
        abort(world, transaction)
        world.drain_transactions()

    def commit(world: StreamWorld, transaction: int) -> None:
        world.commit(transaction)

    def mark(world: StreamWorld, transaction: int) -> None:
        world.another_transaction_service().commit_transaction("s", "t", transaction)

    def commit_set(world: StreamWorld, transaction: int) -> None:
        world.commit_set([transaction])

    return {"abort": abort, "aborted": aborted, "commit": commit, "mark": mark, "set": commit_set}[how]


@pytest.mark.parametrize("how", ["abort", "aborted", "commit", "mark", "set"])
def test_an_end_amid_a_creation_leaves_no_segment(how: str):
    """The transaction ends before any call of the creation: it fails, or what it created is ended with the rest."""
    position, told = 0, set[str]()
    while True:
        world = StreamWorld()
        world.create(segments=2)
        transaction = _begin(world)
        _create(world, transaction, 0)
        world.write_in(transaction, 0.1, b"kept")
        came = world.calls.interrupt_at(position, lambda: _end(how)(world, transaction))  # noqa: B023
        try:
            world.another_transaction_service().create_segments("s", "t", transaction, [0, 1])
        except HeadraceError as error:
            told.add(error.specific_code)
        world.calls.calm()
        if not came:
            break
        world.drain_transactions()
        state = world.transactions.get_transaction("s", "t", transaction).state
        if how.startswith("abort"):
            assert state is ABORTED
        else:
            assert state is COMMITTED, f"at call {position}: a segment that was not created yet is no loss"
            assert all_bytes(world) == b"kept", f"at call {position}"
        assert _own(world, transaction) == [], f"at call {position}"
        position += 1
    assert position >= 4
    allowed = {"transaction_aborted"} if how.startswith("abort") else {"transaction_aborted", "transaction_committed"}
    assert told
    assert told <= allowed


@pytest.mark.parametrize("done", [False, True], ids=["before-the-call", "after-the-call"])
def test_a_repetition_completes_a_creation_that_died(done: bool):
    position = 0
    while True:
        world = StreamWorld()
        world.create(segments=2)
        transaction = _begin(world)
        if not world.calls.dies(lambda: _create(world, transaction, 1), position, done=done):  # noqa: B023
            break
        world.another_transaction_service().create_segments("s", "t", transaction, [1])
        world.write_in(transaction, 0.9, b"x")
        world.commit(transaction)
        assert states(world, transaction) == [COMMITTED], f"dead at call {position}"
        assert _own(world, transaction) == []
        position += 1
    assert position >= 4
    assert issubclass(Crash, Exception)


def test_a_late_creation_spares_what_a_set_releases():
    """A set is refused after a late creation has seen its prepared member, which others go on to use."""
    used = 0
    for position in itertools.count():
        world = StreamWorld()
        for name in "tu":
            world.create(name, segments=1)
        transaction, other = _begin(world), world.begin("u")
        late = _Late(world, transaction, other, position)
        world.calls.before = late.creation_comes
        with contextlib.suppress(HeadraceError):
            world.another_transaction_service().create_segments("s", "t", transaction, [0])
        world.calls.calm()
        world.drain_transactions()
        if late.is_used:
            used += 1
            assert states(world, transaction) == [COMMITTED], f"before call {position}"
            assert all_bytes(world) == b"event", f"before call {position}"
        if not late.has_come:
            break
    assert used >= 3


class _Late:
    """A segment is created late: a set prepares `transaction` before, and is refused at a call that follows."""

    def __init__(self, world: StreamWorld, transaction: int, other: int, position: int) -> None:
        self._world, self._one, self._other, self._left = world, transaction, other, position
        self.has_come = self.is_used = False

    def creation_comes(self, kind: str) -> None:
        if kind == "segment store create_segments":
            self._world.calls.calm()
            self._world.calls.after = self._die_when_prepared
            with contextlib.suppress(Crash):
                self._world.commit_set({"t": [self._one], "u": [self._other]}, epoch=1)
            self._world.calls.calm()
            self._world.calls.before = self._creation_goes_on

    def _die_when_prepared(self, kind: str) -> None:
        if ("transactions/s/t", f"open/{self._one:032x}") in self._world.everything():
            body = self._world.record(open_key("s", "t", self._one)).body
            if body["state"] == TransactionState.COMMITTING:
                raise Crash(kind)

    def _creation_goes_on(self, _kind: str) -> None:
        if self._left > 0:
            self._left -= 1
            return
        self.has_come = True
        self._world.calls.calm()
        with contextlib.suppress(HeadraceError):
            self._refuse_and_use()

    def _refuse_and_use(self) -> None:
        """The other member is aborted, so that the set is refused. What was a member is written and committed."""
        store = self._world.bare_store
        (found,) = TransactionRecords(store).still_open("s", "u", [self._other])
        if found.transaction.state is TransactionState.OPEN:
            store.write(replace_open("s", "u", found, marked_for_abort(found.transaction)))
        self._world.commit_sets.committed_epoch("s", "t", "w")
        _create(self._world, self._one, 0)
        self._world.write_in(self._one, 0.0, b"event")
        self._world.transactions.commit_transaction("s", "t", self._one)
        self.is_used = True


def test_a_transaction_without_segments_on_demand_has_all(stream: StreamWorld):
    """Its record does not tell which segments it has."""
    transaction = stream.begin()
    (body,) = [body for (_, sort), (_, body) in stream.everything().items() if sort == f"open/{transaction:032x}"]
    assert "created_segments" not in body
    assert len(_own(stream, transaction)) == 4
    stream.transactions.abort_transaction("s", "t", transaction)
    stream.drain_transactions()
    assert _own(stream, transaction) == []

"""Transactions that are marked for commit while their stream is sealed.

One may be begun after the seal. Its creator has read the stream before, and finds out after its write that it must
remove the transaction. In between another client finds it in the list. The seal may not have seen it, whatever it has
done by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from stream_commits import all_bytes
from stream_world import StreamWorld

from headrace import topology
from headrace.model.errors import HeadraceError, SealedError
from headrace.model.stream_state import StreamState
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState

OPEN, ABORTED, COMMITTED = TransactionState.OPEN, TransactionState.ABORTED, TransactionState.COMMITTED
LEASE_MS, LONG_MS = 600_000, 24 * 3600 * 1000
CALLS_MAX = 60
"""More calls than a seal makes here."""


@dataclass
class Late:
    """Transactions of the streams t and u. The one of u was begun after the seal of u had made some calls."""

    world: StreamWorld
    here: int
    there: int = 0
    is_seal_complete: bool = False
    is_answered: bool = False

    def try_to(self, ask: Callable[[Late], None]) -> None:
        with contextlib.suppress(HeadraceError):
            ask(self)
            self.is_answered = True

    def seal_a_part(self, calls: int) -> None:
        """A processor of the seal dies after so many calls."""
        self.world.streams.seal_stream("s", "u")
        self.world.receive()
        self.is_seal_complete = not self.world.calls.dies(self.world.process, calls, done=True)

    def settle(self) -> None:
        """The seal is processed again, and all that the records say is left to do. The lease in u ends."""
        world = self.world
        world.process()
        world.acknowledge()
        for passed_ms in (0, CHECK_EVERY_MS + 1, LEASE_MS + CHECK_EVERY_MS, 0):
            world.drain()
            world.drain_transactions()
            world.clock.advance(passed_ms)
            for bucket in range(topology.BUCKET_COUNT):
                world.expire_transactions(bucket)

    def records_left(self) -> list[str]:
        of_commits = ("commit-part/", "order/", "run")
        return [sort for _, sort in self.world.everything() if sort.startswith(of_commits)]

    def state(self, stream: str, transaction: int) -> TransactionState | None:
        stored = self.world.another_transaction_service()._transactions.find("s", stream, transaction)
        return None if stored is None else stored.transaction.state


def commit(late: Late) -> None:
    late.world.another_transaction_service().commit_transaction("s", "u", late.there)


def ping_and_commit(late: Late) -> None:
    service = late.world.another_transaction_service()
    service.ping_transaction("s", "u", late.there, LEASE_MS)
    service.commit_transaction("s", "u", late.there)


def commit_set(late: Late) -> None:
    late.world.commit_set({"t": [late.here], "u": [late.there]}, home="t")


def commit_set_of_one(late: Late) -> None:
    late.world.commit_set({"u": [late.there]}, home="t")


def commit_set_at_home(late: Late) -> None:
    late.world.commit_set({"t": [late.here], "u": [late.there]}, home="u")


def write_event(late: Late) -> None:
    """An event in the transaction, whose segments are created on demand."""
    late.world.another_transaction_service().create_segments("s", "u", late.there, [0])
    late.world.write_in(late.there, 0.0, b"event", "u")


def begun_late(ask: Callable[[Late], None], seal_calls: int, *, has_event: bool) -> Late:
    """`ask` is what another client does with the transaction before its creator goes on."""
    world = StreamWorld()
    for name in "tu":
        world.create(name, segments=1)
        world.begin(name, LEASE_MS)
    late = Late(world, world.begin(lease_ms=LONG_MS))
    (first,) = (transaction.transaction_id for transaction in world.transactions.list_open("s", "u", 10).items)

    def find(_kind: str) -> None:
        world.calls.calm()
        others = {transaction.transaction_id for transaction in world.transactions.list_open("s", "u", 10).items} - {
            first
        }
        (late.there,) = others
        if has_event:
            write_event(late)
        with contextlib.suppress(SealedError):
            ask(late)

    def seal(kind: str) -> None:
        if kind == "transaction":
            world.calls.calm()
            late.seal_a_part(seal_calls)
            world.calls.after = find

    world.calls.before = seal
    with pytest.raises(SealedError):
        world.transactions.create_transaction("s", "u", LEASE_MS, on_demand=has_event)
    return late


def commit_as_creator(late: Late) -> None:
    """The process remembers the transaction from its beginning, and reads no stream."""
    late.world.transactions.commit_transaction("s", "u", late.there)


OF_BOTH = (commit_set, commit_set_at_home)
ASKS = (commit, ping_and_commit, commit_set, commit_set_of_one, commit_set_at_home)


@pytest.mark.parametrize("has_event", [False, True])
@pytest.mark.parametrize("ask", ASKS)
def test_what_was_begun_late_holds_up_no_seal(ask: Callable[[Late], None], has_event: bool):
    for seal_calls in range(CALLS_MAX):
        late = begun_late(ask, seal_calls, has_event=has_event)
        late.settle()
        world, where = late.world, f"after {seal_calls} calls of the seal"
        assert world.records.get("s", "u").stream.state is StreamState.SEALED, where
        assert late.state("u", late.there) in (None, ABORTED), where
        assert late.state("t", late.here) is OPEN, f"{where}: all of a set, or nothing"
        assert late.records_left() == [], where
        assert all_bytes(world, "u") == b"", where
        if late.is_seal_complete:
            break
    assert 10 < seal_calls < CALLS_MAX - 1


def begun_before(seed: int) -> Late:
    """Both transactions are begun before the seal of u, and the one of u has an event."""
    world = StreamWorld(seed)
    for name in "tu":
        world.create(name, segments=1)
    late = Late(world, world.begin(lease_ms=LONG_MS), world.begin("u", LEASE_MS))
    world.write_in(late.there, 0.0, b"event", "u")
    return late


def assert_both_ended(late: Late, ask: Callable[[Late], None], where: str) -> None:
    late.settle()
    assert late.world.records.get("s", "u").stream.state is StreamState.SEALED, where
    here, there = late.state("t", late.here), late.state("u", late.there)
    assert there is COMMITTED if late.is_answered else there in (ABORTED, COMMITTED), where
    assert here is (COMMITTED if ask in OF_BOTH and there is COMMITTED else OPEN), where
    assert late.records_left() == [], where
    assert all_bytes(late.world, "u") == (b"event" if there is COMMITTED else b""), where


@pytest.mark.parametrize("seal_calls", [0, 9, CALLS_MAX])
@pytest.mark.parametrize("ask", [*ASKS, commit_as_creator])
def test_a_seal_amid_a_commit_ends_both(ask: Callable[[Late], None], seal_calls: int):
    """No read of the transaction and its stream is a snapshot."""
    for position in range(CALLS_MAX):
        late = begun_before(position)
        sealed = late.world.calls.interrupt_at(position, partial(late.seal_a_part, seal_calls))
        late.try_to(ask)
        late.world.calls.calm()
        if not sealed:
            break
        assert_both_ended(late, ask, f"before call {position}")
    assert position >= 4


@pytest.mark.parametrize("ask", [*ASKS, commit_as_creator])
def test_a_commit_amid_a_seal_ends_both(ask: Callable[[Late], None]):
    for position in range(CALLS_MAX):
        late = begun_before(position)
        late.world.streams.seal_stream("s", "u")
        late.world.receive()
        committed = late.world.calls.interrupt_at(position, partial(late.try_to, ask))
        late.world.process()
        late.world.calls.calm()
        if not committed:
            break
        assert_both_ended(late, ask, f"before call {position} of the seal")
    assert position >= 15

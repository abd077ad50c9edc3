"""The transaction service: what it answers, what it refuses, and who wins a race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.transaction_records import TransactionRecords, mark_for_commit
from headrace.model.errors import (
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.transactions import (
    EXECUTION_MS_MAX,
    CommitOrder,
    TransactionState,
    WriterTime,
    marked_for_commit,
)

UNKNOWN = 0xABC


@pytest.fixture
def stream(world: StreamWorld) -> StreamWorld:
    world.create(segments=2)
    return world


def test_a_new_transaction_covers_the_key_space(stream: StreamWorld):
    made = stream.transactions.create_transaction("s", "t", 20_000)
    assert made.state is TransactionState.OPEN
    assert made.lease_end_ms == stream.clock.now_ms() + 20_000
    assert [segment.key_range for segment in made.segments] == [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]
    assert [segment.name for segment in made.segments] == ["s/t/0.#epoch.0", "s/t/1.#epoch.0"]
    text = f"{made.transaction_id:032x}"
    assert [segment.transaction_segment for segment in made.segments] == [
        f"{segment.name}#transaction.{text}" for segment in made.segments
    ]
    assert {segment.transaction_segment for segment in made.segments} <= set(stream.bare_segment_stores.names())
    assert stream.transactions.segments_of("s", "t", made.transaction_id) == made


def test_the_epoch_is_in_the_id(stream: StreamWorld):
    stream.scale([0], [0.0, 0.25, 0.5])
    identifier = stream.begin()
    assert identifier >> 96 == 1
    assert identifier >> 63 & 1 == 0


@pytest.mark.parametrize(("lease_ms", "code"), [(9_999, "lease_too_small"), (86_400_001, "lease_too_large")])
def test_leases_have_bounds(stream: StreamWorld, lease_ms: int, code: str):
    transaction = stream.begin()
    for ask in (
        lambda: stream.transactions.create_transaction("s", "t", lease_ms),
        lambda: stream.transactions.ping_transaction("s", "t", transaction, lease_ms),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            ask()
        assert refused.value.specific_code == code


def test_streams_that_take_no_transaction(world: StreamWorld):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with pytest.raises(UnavailableError):
        world.begin()
    world.drain()
    world.streams.seal_stream("s", "t")
    with pytest.raises(SealedError):
        world.begin()
    with pytest.raises(NotFoundError):
        world.begin("nowhere")


def test_a_ping_moves_the_end_of_the_lease_and_never_back(stream: StreamWorld):
    transaction = stream.begin(lease_ms=60_000)
    start_ms = stream.clock.now_ms()
    stream.clock.advance(5_000)
    assert stream.transactions.ping_transaction("s", "t", transaction, 60_000).lease_end_ms == start_ms + 65_000
    assert stream.transactions.ping_transaction("s", "t", transaction, 10_000).lease_end_ms == start_ms + 65_000


def test_pings_of_several_processes_do_not_undo_each_other(stream: StreamWorld):
    transaction, start_ms, other = (
        stream.begin(lease_ms=60_000),
        stream.clock.now_ms(),
        stream.another_transaction_service(),
    )
    for turn in range(1, 6):
        stream.clock.advance(5_000)
        service = (stream.transactions, other)[turn % 2]
        assert service.ping_transaction("s", "t", transaction, 60_000).lease_end_ms == start_ms + 60_000 + turn * 5_000
    assert stream.transactions.ping_transaction("s", "t", transaction, 10_000).lease_end_ms == start_ms + 85_000
    other.abort_transaction("s", "t", transaction)
    assert _code(lambda: stream.transactions.ping_transaction("s", "t", transaction, 10_000)) == "transaction_aborted"


def test_a_ping_after_one_with_unknown_outcome_is_right(stream: StreamWorld):
    transaction, honest = stream.begin(lease_ms=60_000), stream.store.write

    def lost(*writes: Any) -> None:
        honest(*writes)
        raise UnavailableError("the answer was lost")

    stream.store.write = lost
    stream.clock.advance(5_000)
    with pytest.raises(UnavailableError):
        stream.transactions.ping_transaction("s", "t", transaction, 60_000)
    stream.store.write = honest
    assert (
        stream.transactions.ping_transaction("s", "t", transaction, 10_000).lease_end_ms
        == stream.clock.now_ms() + 60_000
    )


def test_no_lease_reaches_beyond_the_longest_execution(stream: StreamWorld):
    transaction = stream.begin(lease_ms=600_000)
    stream.clock.advance(EXECUTION_MS_MAX - 600_000)
    stream.transactions.ping_transaction("s", "t", transaction, 600_000)
    stream.clock.advance(1)
    with pytest.raises(IllegalStateError) as refused:
        stream.transactions.ping_transaction("s", "t", transaction, 600_000)
    assert refused.value.specific_code == "max_execution_time_exceeded"


def _code(ask: Callable[[], object]) -> str:
    with pytest.raises(HeadraceError) as refused:
        ask()
    return refused.value.specific_code


def test_the_mark_decides(stream: StreamWorld):
    service = stream.transactions
    kept, dropped = stream.begin(), stream.begin()
    for _ in range(2):
        assert service.commit_transaction("s", "t", kept).state is TransactionState.COMMITTING
        assert service.abort_transaction("s", "t", dropped).state is TransactionState.ABORTING
        assert _code(lambda: service.abort_transaction("s", "t", kept)) == "transaction_committed"
        assert _code(lambda: service.commit_transaction("s", "t", dropped)) == "transaction_aborted"
        assert _code(lambda: service.ping_transaction("s", "t", kept, 10_000)) == "transaction_committed"
        assert _code(lambda: service.ping_transaction("s", "t", dropped, 10_000)) == "transaction_aborted"
    stream.drain_transactions()
    assert service.commit_transaction("s", "t", kept).state is TransactionState.COMMITTED
    assert service.abort_transaction("s", "t", dropped).state is TransactionState.ABORTED
    assert _code(lambda: service.abort_transaction("s", "t", kept)) == "transaction_committed"
    assert _code(lambda: service.commit_transaction("s", "t", dropped)) == "transaction_aborted"
    assert stream.drain_transactions() == 0


@pytest.mark.parametrize("name", ["ping", "commit", "abort", "get", "segments"])
def test_what_is_unknown_is_not_found(stream: StreamWorld, name: str):
    service = stream.transactions
    ask = {
        "ping": lambda name: service.ping_transaction("s", name, UNKNOWN, 10_000),
        "commit": lambda name: service.commit_transaction("s", name, UNKNOWN),
        "abort": lambda name: service.abort_transaction("s", name, UNKNOWN),
        "get": lambda name: service.get_transaction("s", name, UNKNOWN),
        "segments": lambda name: service.segments_of("s", name, UNKNOWN),
    }[name]
    assert _code(lambda: ask("t")) == "transaction_not_found"
    assert _code(lambda: ask("nowhere")) == "not_found"


def test_a_transaction_that_is_completed_amid_the_read_is_found(stream: StreamWorld):
    """The batch sees neither the open record any more nor the done record yet."""
    transaction = stream.begin()
    stream.transactions.commit_transaction("s", "t", transaction)
    real = stream.store.get_many

    def torn(keys: Any) -> Any:
        stream.store.get_many = real
        stream.drain_transactions()
        return [None for _ in keys]

    stream.store.get_many = torn
    assert stream.transactions.get_transaction("s", "t", transaction).state is TransactionState.COMMITTED


def test_open_ones_are_listed_in_pages(stream: StreamWorld):
    ids = sorted(stream.begin() for _ in range(5))
    stream.transactions.commit_transaction("s", "t", ids[1])
    first = stream.transactions.list_open("s", "t", 2)
    assert [transaction.transaction_id for transaction in first.items] == ids[:2]
    assert first.items[1].state is TransactionState.COMMITTING
    rest = stream.transactions.list_open("s", "t", 3, int(first.next_after or "", 16))
    assert [transaction.transaction_id for transaction in rest.items] == ids[2:]
    assert rest.next_after is None
    assert stream.transactions.list_open("s", "t", 3, ids[-1]).items == ()
    with pytest.raises(NotFoundError):
        stream.transactions.list_open("s", "nowhere", 3)


def test_completed_ones_are_listed_the_newest_first(stream: StreamWorld):
    assert stream.transactions.list_completed("s", "t") == ()
    kept, dropped = stream.begin(), stream.begin()
    stream.commit(kept)
    stream.clock.advance(5)
    stream.transactions.abort_transaction("s", "t", dropped)
    stream.drain_transactions()
    assert [
        (transaction.transaction_id, str(transaction.state))
        for transaction in stream.transactions.list_completed("s", "t")
    ] == [
        (dropped, "ABORTED"),
        (kept, "COMMITTED"),
    ]
    with pytest.raises(NotFoundError):
        stream.transactions.list_completed("s", "nowhere")


def test_a_seal_amid_a_creation_leaves_no_open_transaction(stream: StreamWorld):
    with stream.calls.overtaken("transaction", stream.seal), pytest.raises(SealedError):
        stream.begin()
    assert stream.transactions.list_open("s", "t", 10).items == ()


def found_after_a_seal(stream: StreamWorld, ask: Callable[[int], object]) -> int:
    """Another client finds a transaction in the list before its creator sees the seal of the stream, and uses it."""
    found: list[int] = []

    def find(_called: str) -> None:
        stream.calls.calm()
        found.extend(transaction.transaction_id for transaction in stream.transactions.list_open("s", "t", 10).items)
        ask(found[0])

    def seal_and_go_on() -> None:
        stream.seal()
        stream.calls.after = find

    with stream.calls.overtaken("transaction", seal_and_go_on), pytest.raises(SealedError):
        stream.begin()
    return found[0]


def test_what_was_begun_after_the_seal_is_not_committed(stream: StreamWorld):
    def commit(transaction: int) -> None:
        with pytest.raises(SealedError):
            stream.another_transaction_service().commit_transaction("s", "t", transaction)

    found_after_a_seal(stream, commit)
    assert stream.transactions.list_open("s", "t", 10).items == ()


def test_mark_that_a_sealed_stream_cannot_commit_is_aborted(stream: StreamWorld):
    """A process of an earlier release marks it, and does not read the stream."""

    def commit(transaction: int) -> None:
        (stored,) = TransactionRecords(stream.bare_store).still_open("s", "t", [transaction])
        after = marked_for_commit(stored.transaction, CommitOrder(0, group=transaction), None)
        stream.bare_store.write(*mark_for_commit("s", "t", stored, after, stream.clock.now_ms()))
        stream.another_transaction_service().commit_transaction("s", "t", transaction)

    marked = found_after_a_seal(stream, commit)
    stream.drain_transactions()
    assert stream.transactions.get_transaction("s", "t", marked).state is TransactionState.ABORTED
    assert not [name for name in stream.bare_segment_stores.names() if "#transaction." in name]


def test_a_creation_amid_another_operation_gets_through(stream: StreamWorld):
    """The epoch changes between the read of the current record and the write: the transaction begins in the new one."""
    with stream.calls.overtaken("transaction", lambda: stream.scale([0], [0.0, 0.25, 0.5])):
        assert stream.begin() >> 96 == 1


@dataclass(frozen=True)
class Busy:
    """A stream with transactions: `open` and `more` are open, `done` is committed."""

    world: StreamWorld
    open: int
    more: list[int]
    done: int


# Exact costs in requests. No call writes or checks a record of another one. So a creation reads the stream's record
# again behind its write, and its own record behind the creation of its segments. A commit asks for the newest mark
# before it and for the oldest mark behind it.
COSTS: dict[str, tuple[Callable[[Busy], object], dict[str, int]]] = {
    "create": (
        lambda w: w.world.transactions.create_transaction("s", "t", 10_000),
        {"read": 2, "transaction": 1, "segment store create_segments": 1},
    ),
    "create in a process that does not know the stream": (
        lambda w: w.world.another_transaction_service().create_transaction("s", "t", 10_000),
        {"read": 3, "transaction": 1, "segment store create_segments": 1},
    ),
    "ping": (lambda w: w.world.transactions.ping_transaction("s", "t", w.open, 10_000), {"write": 1}),
    "ping of a process that does not know it": (
        lambda w: w.world.another_transaction_service().ping_transaction("s", "t", w.open, 10_000),
        {"read": 1, "write": 1},
    ),
    "commit": (
        lambda w: w.world.transactions.commit_transaction("s", "t", w.open),
        {"query": 2, "transaction": 1, "send": 1},
    ),
    "commit while another one waits": (
        lambda w: [
            w.world.transactions.commit_transaction("s", "t", transaction) for transaction in (w.open, w.more[0])
        ],
        {"query": 4, "transaction": 2, "send": 1},
    ),
    "commit of a process that does not know it": (
        lambda w: w.world.another_transaction_service().commit_transaction("s", "t", w.open),
        {"read": 1, "query": 2, "transaction": 1, "send": 1},
    ),
    "commit again": (lambda w: w.world.transactions.commit_transaction("s", "t", w.done), {"read": 1}),
    "abort": (lambda w: w.world.transactions.abort_transaction("s", "t", w.open), {"read": 1, "write": 1, "send": 1}),
    "state": (lambda w: w.world.transactions.get_transaction("s", "t", w.done), {"read": 1}),
    "list open": (lambda w: w.world.transactions.list_open("s", "t", 100), {"query": 1}),
    "list completed": (lambda w: w.world.transactions.list_completed("s", "t"), {"query": 1}),
    "commit set": (
        lambda w: w.world.commit_set([w.open, *w.more], epoch=2),
        {"read": 2, "query": 1, "transaction": 3, "send": 1},
    ),
    "commit set again": (
        lambda w: w.world.commit_set([w.done], epoch=1),
        {"read": 3, "query": 1},
    ),
    "committed epoch": (lambda w: w.world.commit_sets.committed_epoch("s", "t", "w"), {"read": 1}),
}


@pytest.fixture
def busy(stream: StreamWorld) -> Busy:
    """Some transactions are open, one is done, one was committed as a set."""
    opened, *more = [stream.begin() for _ in range(40)]
    done = stream.begin()
    stream.commit_set([stream.begin()], epoch=1)
    stream.commit(done)
    stream.calls.counts.clear()
    return Busy(stream, opened, more, done)


@pytest.mark.parametrize("name", COSTS)
def test_cost_of_a_call(busy: Busy, name: str):
    ask, cost = COSTS[name]
    ask(busy)
    assert dict(busy.world.calls.counts) == cost


def test_a_creation_after_a_roll_reads_the_repeated_epoch_once(stream: StreamWorld):
    late = stream.begin()
    stream.scale([0], [0.0, 0.25, 0.5])
    stream.commit(late)
    for reads in (5, 2):
        stream.calls.counts.clear()
        stream.begin()
        assert stream.calls.counts["read"] == reads


def test_cost_of_commits_does_not_depend_on_their_number(stream: StreamWorld):
    """One batch of a hundred: a merge per segment; two reads and a transaction note the time of their one writer."""
    for _ in range(100):
        stream.transactions.commit_transaction("s", "t", stream.begin(), WriterTime("w", 1))
    message, *_ = stream.bare_commits.receive()
    stream.calls.counts.clear()
    stream.commits.process(message.body)
    assert dict(stream.calls.counts) == {
        "read": 5,
        "query": 2,
        "transaction": 7,
        "segment store incomplete_segments": 1,
        "segment store merge_segments": 2,
        "segment store segment_infos": 1,
    }
    stream.calls.counts.clear()
    stream.commits.process(message.body)
    assert dict(stream.calls.counts) == {"read": 1, "query": 1}


def test_cost_of_a_rolling_commit(stream: StreamWorld):
    late = stream.begin()
    stream.scale([0], [0.0, 0.25, 0.5])
    stream.transactions.commit_transaction("s", "t", late)
    (message,) = stream.bare_commits.receive()
    stream.calls.counts.clear()
    stream.commits.process(message.body)
    assert dict(stream.calls.counts) == {
        "read": 7,
        "query": 2,
        "write": 2,
        "transaction": 5,
        "segment store create_segments": 1,
        "segment store incomplete_segments": 1,
        "segment store merge_segments": 2,
        "segment store seal_segments": 2,
        "segment store segment_infos": 2,
    }


def test_cost_of_an_abort(stream: StreamWorld):
    stream.transactions.abort_transaction("s", "t", stream.begin())
    (message,) = stream.bare_aborts.receive()
    stream.calls.counts.clear()
    stream.aborts.process(message.body)
    assert dict(stream.calls.counts) == {"read": 1, "transaction": 1, "segment store delete_segments": 1}

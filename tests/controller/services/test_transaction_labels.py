"""Labels: which transactions are listed and aborted by them."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace.controller.services import transaction_service as service
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.transactions import TransactionState, parse_transaction_id


@pytest.fixture
def stream(world: StreamWorld) -> StreamWorld:
    world.create(segments=1)
    return world


def _begin(world: StreamWorld, label: str | None) -> int:
    return world.transactions.create_transaction("s", "t", 60_000, label=label).transaction_id


def _listed(world: StreamWorld, prefix: str, limit: int = 2) -> list[int]:
    """By pages, as a client asks."""
    found: list[int] = []
    after: int | None = None
    while True:
        page = world.transactions.list_open("s", "t", limit, after, prefix)
        found += [transaction.transaction_id for transaction in page.items]
        if page.next_after is None:
            return found
        after = parse_transaction_id(page.next_after)


def _state(world: StreamWorld, transaction: int) -> TransactionState:
    return world.transactions.get_transaction("s", "t", transaction).state


def test_a_list_by_label_reads_all_pages(stream: StreamWorld):
    made = {label: _begin(stream, label) for label in ("q/1", "r/1", "r/2", "r/3", "q/2", None)}
    assert _listed(stream, "q/") == [made["q/1"], made["q/2"]]
    assert _listed(stream, "q/2") == [made["q/2"]]
    assert _listed(stream, "none") == []
    assert stream.transactions.segments_of("s", "t", made["q/1"]).label == "q/1"


def test_open_ones_are_aborted_by_label(stream: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "LABELLED_PER_REQUEST", 3)
    ids = [_begin(stream, label) for label in ("q/1", "r", "q/2", "q/3", "q/4", None, "q/5")]
    stream.transactions.commit_transaction("s", "t", ids[2])
    stream.transactions.abort_transaction("s", "t", ids[3])
    told = []
    after: int | None = None
    while True:
        page = stream.transactions.abort_labelled("s", "t", "q/", after)
        told.append(page.aborted)
        if page.next_after is None:
            break
        after = parse_transaction_id(page.next_after)
    assert told == [1, 1, 1]
    stream.drain_transactions()
    assert [_state(stream, ids[index]) for index in (0, 4, 6)] == [TransactionState.ABORTED] * 3
    assert [_state(stream, ids[index]) for index in (1, 5)] == [TransactionState.OPEN] * 2
    assert _state(stream, ids[2]) is TransactionState.COMMITTED


@pytest.mark.parametrize("meanwhile", ["ping", "commit", "set"])
def test_an_abort_by_label_amid_other_calls(stream: StreamWorld, meanwhile: str):
    """All are marked in one transaction, which fails: one of them was pinged or committed. The others are aborted."""
    ids = [_begin(stream, "q") for _ in range(3)]
    others = stream.another_transaction_service()

    def overtake() -> None:
        if meanwhile == "ping":
            others.ping_transaction("s", "t", ids[1], 60_000)
        elif meanwhile == "commit":
            others.commit_transaction("s", "t", ids[1])
        else:
            stream.commit_set([ids[1]])

    with stream.calls.overtaken("transaction", by=overtake):
        aborted = stream.transactions.abort_labelled("s", "t", "q").aborted
    assert aborted == (3 if meanwhile == "ping" else 2)
    stream.drain_transactions()
    kept = TransactionState.ABORTED if meanwhile == "ping" else TransactionState.COMMITTED
    assert [_state(stream, transaction) for transaction in ids] == [
        TransactionState.ABORTED,
        kept,
        TransactionState.ABORTED,
    ]


def test_what_is_no_label_or_stream(stream: StreamWorld):
    for ask in (
        lambda: stream.transactions.list_open("s", "t", 2, None, "a b"),
        lambda: stream.transactions.abort_labelled("s", "t", ""),
        lambda: _begin(stream, "ä"),
    ):
        with pytest.raises(InvalidRequestError):
            ask()
    with pytest.raises(NotFoundError):
        stream.transactions.abort_labelled("s", "nowhere", "q")
    assert stream.transactions.list_open("s", "t", 2).items == ()

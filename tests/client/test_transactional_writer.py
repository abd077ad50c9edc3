"""The transactional writer against the scripted cluster: where events go, what leases need, what ends a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from scripted_cluster import Cluster

from headrace.client import (
    AsyncHeadrace,
    Headrace,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    KeyRange,
    Transaction,
    UnavailableError,
    connect,
)
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.model.names import transaction_segment_name

LEASE_MS = 10_000


class Transactions:
    """The controller's part, in front of a `Cluster`, whose store gets a segment for each segment of a transaction."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.states: dict[str, str] = {}
        self.outcome = "COMMITTED"
        self.asked: list[tuple[str, str, Any]] = []
        self.refusal: tuple[int, str] | None = None
        self._name = cluster.name
        self._made: dict[int, str] = {}
        cluster.name = lambda identifier: self._made.get(identifier) or self._name(identifier)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/scopes/s/streams/t/")
        if not path.startswith(("transactions", "commit-sets")):
            return self.cluster.handle(request)
        body = httpx.Response(200, content=request.content or b"null").json()
        self.asked.append((request.method, path, body))
        if self.refusal is not None:
            status, code = self.refusal
            error = {"code": code, "message": "no", "retry": "never", "details": {}}
            return httpx.Response(status, json={"error": error})
        return httpx.Response(200, json=self._answer(request.method, path.split("/")[1:], body))

    def _answer(self, method: str, parts: list[str], body: Any) -> dict[str, Any]:
        if method == "POST":
            transaction = f"{len(self.states) + 1:032x}"
            self.states[transaction] = "OPEN"
            for one in list(self.cluster.active):
                self._segment(one, transaction)
        else:
            transaction = parts[0]
        if parts[1:] == ["state"]:
            self.states[transaction] = body["state"]
        answer = self._view(transaction)
        if self.states[transaction] == "COMMITTING":
            self.states[transaction] = self.outcome
        elif self.states[transaction] == "ABORTED":
            self.refusal = 404, "transaction_not_found"  # a client that asks for ever is told
        return answer

    def _segment(self, parent: int, transaction: str) -> None:
        identifier = int(transaction, 16) << 64 | parent
        segment = type(self.cluster.segments[parent])(self.cluster.segments[parent].key_range)
        self.cluster.segments[identifier] = segment
        self._made[identifier] = transaction_segment_name(self._name(parent), int(transaction, 16))

    def _view(self, transaction: str) -> dict[str, Any]:
        made = {one: name for one, name in self._made.items() if one >> 64 == int(transaction, 16)}
        segments = [
            {
                "segmentId": identifier & (1 << 64) - 1,
                "name": self._name(identifier & (1 << 64) - 1),
                "transactionSegment": name,
                "low": self.cluster.segments[identifier].key_range.low,
                "high": self.cluster.segments[identifier].key_range.high,
            }
            for identifier, name in made.items()
        ]
        return {
            "transaction": transaction,
            "state": self.states[transaction],
            "creationTime": 1,
            "leaseEnd": 2,
            "completionTime": None,
            "segments": segments,
        }

    def events(self, transaction: str) -> list[bytes]:
        made = [one for one in self._made if one >> 64 == int(transaction, 16)]
        return [event for identifier in made for event in self.cluster.events(identifier)]


@pytest.fixture
def controller(cluster: Cluster) -> Transactions:
    return Transactions(cluster)


@pytest.fixture
def headrace(controller: Transactions) -> Iterator[Headrace]:
    with connect("http://controller", transport=httpx.MockTransport(controller.handle), retry_s=1.0) as client:
        yield client


def test_events_are_written_to_transaction_segments(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        for number in range(100):
            transaction.write(b"%d" % number, routing_key=str(number))
        transaction.flush()
        assert sorted(controller.events(transaction.id)) == sorted(b"%d" % number for number in range(100))
        assert transaction.state() == "OPEN"
        transaction.commit(writer="w", time=5, wait=True)
    assert controller.states == {transaction.id: "COMMITTED"}
    assert ("PUT", f"transactions/{transaction.id}/state", {"state": "COMMITTING", "writer": "w", "time": 5}) in (
        controller.asked
    )
    assert [one.key_range for one in headrace.admin.transactions.get("s", "t", transaction.id).segments] == [
        KeyRange(0.0, 0.5),
        KeyRange(0.5, 1.0),
    ]


def test_waiting_for_a_commit_ends_if_the_transaction_is_aborted(headrace: Headrace, controller: Transactions):
    """A volume with some of its events was lost: the workflow aborts it after the commit was accepted."""
    controller.outcome = "ABORTED"
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        transaction.write(b"x")
        with pytest.raises(IllegalStateError) as aborted:
            transaction.commit(wait=True)
    assert aborted.value.specific_code == "transaction_aborted"
    assert aborted.value.details["transaction"] == transaction.id


def test_a_block_commits_and_a_block_that_fails_aborts(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        with writer.begin() as kept:
            kept.write(b"x")
        dropped = writer.begin()
        with pytest.raises(ValueError, match="mine"):
            _fail_inside(dropped)
        with writer.begin() as early:
            early.commit()
    assert controller.states == {kept.id: "COMMITTED", dropped.id: "ABORTING", early.id: "COMMITTED"}
    assert controller.events(kept.id) == [b"x"]


def _fail_inside(transaction: Transaction) -> None:
    with transaction:
        transaction.write(b"y")
        raise ValueError("mine")


def test_nothing_is_written_behind_the_end(headrace: Headrace):
    with headrace.transactional_writer("s", "t") as writer:
        done, dropped, left = (writer.begin() for _ in range(3))
        done.commit()
        dropped.abort()
        for transaction, code in ((done, "transaction_committed"), (dropped, "transaction_aborted")):
            with pytest.raises(IllegalStateError) as refused:
                transaction.write(b"late")
            assert refused.value.specific_code == code
    with pytest.raises(UnavailableError):
        left.write(b"late")


def test_another_writer_goes_on_with_a_transaction(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        begun = writer.begin()
        begun.write(b"first", "k").result()
    with headrace.transactional_writer("s", "t") as writer:
        resumed = writer.transaction(begun.id)
        resumed.write(b"second", "k")
        resumed.commit()
    assert controller.events(begun.id) == [b"first", b"second"]


def test_events_that_are_too_large_are_refused(headrace: Headrace):
    with headrace.transactional_writer("s", "t") as writer, writer.begin() as transaction:
        with pytest.raises(InvalidRequestError) as refused:
            transaction.write(b"x" * (EVENT_BYTES_MAX + 1))
        assert refused.value.specific_code == "event_too_large"


def test_a_transaction_whose_segments_are_gone_fails(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        for identifier, segment in controller.cluster.segments.items():
            segment.deleted = identifier >> 64 != 0
        transaction.write(b"x")
        with pytest.raises(IllegalStateError) as refused:
            transaction.flush(10)
        assert refused.value.specific_code == "transaction_aborted"


@pytest.mark.anyio
async def test_leases_are_renewed_until_the_transaction_ends(controller: Transactions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.client.transactional_writer._PINGS_PER_LEASE", 1_000)
    transport = httpx.MockTransport(controller.handle)
    client = AsyncHeadrace("http://controller", transport=transport, retry_s=1.0)
    async with client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = await writer.begin()
        await _until(lambda: len([one for one in controller.asked if one[1].endswith("/lease")]) > 2)
        assert controller.asked[-1][2] == {"lease": LEASE_MS}
        await transaction.write(b"x")
        await transaction.flush()
        controller.refusal = 412, "transaction_aborted"
        await _until(lambda: transaction.accumulator.failure is not None)
        with pytest.raises(HeadraceError):
            await transaction.write(b"y")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_commit_sets_and_lists(headrace: Headrace, controller: Transactions, monkeypatch: pytest.MonkeyPatch):
    one, other = (headrace.admin.transactions.create("s", "t", lease_ms=LEASE_MS).transaction for _ in range(2))
    made = {"key": "k", "transactions": [one, other], "time": 3, "new": True}
    pages = [
        {"transactions": [controller._view(one)], "continuationToken": one},
        {"transactions": [controller._view(other)], "continuationToken": None},
    ]
    answers = [made, made, {"completed": [{"transaction": one, "state": "COMMITTED"}]}, *pages]
    monkeypatch.setattr(controller, "_answer", lambda *_: answers.pop(0))
    admin = headrace.admin.transactions
    assert admin.commit_all("s", "t", "k", [one, other]).transactions == (one, other)
    assert admin.commit_set("s", "t", "k").new
    assert admin.list_completed("s", "t") == [(one, "COMMITTED")]
    assert [found.transaction for found in admin.list_open("s", "t")] == [one, other]
    assert controller.asked[-5:-3] == [
        ("POST", "commit-sets", {"key": "k", "transactions": [one, other]}),
        ("GET", "commit-sets/k", None),
    ]

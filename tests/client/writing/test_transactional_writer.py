"""The transactional writer against the scripted cluster: where events go, what leases need, what ends a transaction."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import pytest
from scripted_cluster import Cluster
from scripted_transactions import Transactions, lease_outcome

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
from headrace.model.routing import routing_key_position
from headrace.model.transactions import LEASES_PER_REQUEST_MAX

LEASE_MS = 10_000


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
    assert [segment.key_range for segment in headrace.admin.transactions.get("s", "t", transaction.id).segments] == [
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
        with writer.begin() as left:
            left.detach()
    ended = {kept.id: "COMMITTED", dropped.id: "ABORTING", early.id: "COMMITTED"}
    assert controller.states == ended | {left.id: "OPEN"}
    assert controller.events(kept.id) == [b"x"]


@pytest.mark.parametrize("is_lost", ["an event", "the lease"])
def test_end_of_a_block_tells_that_nothing_is_committed(
    headrace: Headrace, controller: Transactions, monkeypatch: pytest.MonkeyPatch, is_lost: str
):
    """No call inside the block has raised anything: the transaction failed after the last of them."""
    monkeypatch.setattr("headrace.client.writing.transactional_writer._PINGS_PER_LEASE", 1_000)
    with headrace.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = writer.begin()
        controller.refusal = 412, "transaction_aborted"
        with pytest.raises(IllegalStateError, match=r"no"):
            _fail_silently(transaction, [b"x"] if is_lost == "an event" else [])


def _fail_silently(transaction: Transaction, events: list[bytes]) -> None:
    with transaction:
        transaction.write_batch(events)
        while transaction._accumulator.failure is None:
            time.sleep(0.001)


def test_a_detached_transaction_is_durable_and_open(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        transaction.write(b"x")
        transaction.detach()
        assert controller.events(transaction.id) == [b"x"]
        with pytest.raises(IllegalStateError) as ended:
            transaction.write(b"y")
    assert ended.value.specific_code == "transaction_detached"
    assert controller.states == {transaction.id: "OPEN"}
    assert headrace.admin.transactions.commit("s", "t", transaction.id).state == "COMMITTING"


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
    monkeypatch.setattr("headrace.client.writing.transactional_writer._PINGS_PER_LEASE", 1_000)
    transport = httpx.MockTransport(controller.handle)
    client = AsyncHeadrace("http://controller", transport=transport, retry_s=1.0)
    async with client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = await writer.begin()
        await _until(lambda: len([request for request in controller.asked if request[1] == "transaction-leases"]) > 2)
        assert controller.asked[-1][2] == {"lease": LEASE_MS, "transactions": [transaction.id]}
        await transaction.write(b"x")
        await transaction.flush()
        controller.refusal = 412, "transaction_aborted"
        await _until(lambda: transaction.accumulator.failure is not None)
        with pytest.raises(HeadraceError):
            await transaction.write(b"y")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def _requested(controller: Transactions) -> list[list[int]]:
    """The segments that were requested, by request."""
    return [body["segments"] for _, path, body in controller.asked if path.endswith("/segments")]


def test_a_batch_requests_its_segments_once(headrace: Headrace, controller: Transactions, cluster: Cluster):
    everywhere = [f"key-{number}" for number in range(200)]
    segments = sorted(cluster.active)
    assert len(segments) > 1
    with headrace.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = writer.begin(label="job/7")
        assert controller.asked[-1] == (
            "POST",
            "transactions",
            {"lease": LEASE_MS, "label": "job/7", "segments": "on-demand"},
        )
        transaction.flush()
        assert _requested(controller) == [], "a transaction without events has no segment"
        transaction.write_batch([b"%d" % number for number in range(200)], everywhere)
        transaction.flush()
        assert _requested(controller) == [segments]
        for key in everywhere:
            transaction.write(b"more", key)
        transaction.write_batch([], [])
        transaction.flush()
        assert _requested(controller) == [segments], "no request per event"
        transaction.commit()
    assert len(controller.events(transaction.id)) == 400


def test_a_segment_is_requested_when_it_gets_its_first_event(
    headrace: Headrace, controller: Transactions, cluster: Cluster
):
    key_of: dict[int, str] = {}
    for number in range(200):
        segment = next(
            identifier
            for identifier in cluster.active
            if cluster.segments[identifier].key_range.low
            <= routing_key_position(f"key-{number}")
            < cluster.segments[identifier].key_range.high
        )
        key_of.setdefault(segment, f"key-{number}")
    with headrace.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer, writer.begin() as transaction:
        for count, (segment, key) in enumerate(key_of.items(), 1):
            transaction.write(b"x", key)
            transaction.flush()
            assert len(_requested(controller)) == count
            assert _requested(controller)[-1] == [segment]


def test_a_controller_that_creates_all_is_not_asked(headrace: Headrace, controller: Transactions):
    controller.creates_all = True
    with headrace.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer, writer.begin() as transaction:
        transaction.write(b"x")
    assert _requested(controller) == []


def test_a_batch_with_a_large_event_queues_nothing(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = writer.begin()
        with pytest.raises(InvalidRequestError) as refused:
            transaction.write_batch([b"x", bytes(EVENT_BYTES_MAX + 1)])
        assert refused.value.specific_code == "event_too_large"
        transaction.flush()
        assert controller.events(transaction.id) == []


@pytest.mark.anyio
async def test_an_aborted_transaction_creates_no_segment(controller: Transactions):
    transport = httpx.MockTransport(controller.handle)
    async with (
        AsyncHeadrace("http://controller", transport=transport) as headrace,
        headrace.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer,
    ):
        transaction = await writer.begin()
        controller.refusal = 412, "transaction_aborted"
        await transaction.write(b"x")
        with pytest.raises(HeadraceError) as refused:
            await transaction.flush()
        assert refused.value.specific_code == "transaction_aborted"


@pytest.mark.anyio
async def test_events_fail_although_leaving_is_cancelled(controller: Transactions):
    """As when a writer is closed that has just heard of the end of a transaction."""
    transport = httpx.MockTransport(controller.handle)
    client = AsyncHeadrace("http://controller", transport=transport)
    async with client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = await writer.begin()
        ack = await transaction.write(b"x")
        leaving = asyncio.create_task(transaction.leave(UnavailableError("left")))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert ack.done
        assert isinstance(ack.exception(), UnavailableError)


@pytest.mark.anyio
async def test_a_lease_near_the_longest_lifetime_is_kept(controller: Transactions):
    """The renewal is refused, but the transaction stays usable until its lease ends."""
    transport = httpx.MockTransport(controller.handle)
    async with (
        AsyncHeadrace("http://controller", transport=transport) as headrace,
        headrace.transactional_writer("s", "t", lease_ms=24 * 3600 * 1000) as writer,
    ):
        begun = await writer.begin()
        pinged = 0

        def refuse_pings(request: httpx.Request) -> httpx.Response:
            nonlocal pinged
            if request.url.path.endswith("/lease"):
                pinged += 1
                error = {"code": "max_execution_time_exceeded", "message": "no", "retry": "never", "details": {}}
                return httpx.Response(412, json={"error": error})
            return controller.handle(request)

        transport.handler = refuse_pings
        continued = await writer.transaction(begun.id)
        assert pinged == 1
        await continued.write(b"x")
        await continued.flush()


def test_commit_sets_and_lists(headrace: Headrace, controller: Transactions, monkeypatch: pytest.MonkeyPatch):
    first, second = (headrace.admin.transactions.create("s", "t", lease_ms=LEASE_MS).transaction for _ in range(2))
    made = {"writer": "w", "epoch": 7, "time": 3, "new": True}
    pages = [
        {"transactions": [controller._view(first)], "continuationToken": first},
        {"transactions": [], "continuationToken": first},
        {"transactions": [controller._view(second)], "continuationToken": None},
    ]
    told = {"writer": "w", "epoch": 7, "time": 3}
    answers = [made, made, told, {"completed": [{"transaction": first, "state": "COMMITTED"}]}, *pages]
    monkeypatch.setattr(controller, "_answer", lambda *_: answers.pop(0))
    admin = headrace.admin.transactions
    assert admin.commit_all("s", "t", [first, second], writer="w", epoch=7).new
    assert admin.commit_all("s", "t", {"u": [first]}, writer="w", epoch=7, abort_labels="q").epoch == 7
    assert admin.committed_epoch("s", "t", "w") == 7
    assert [(transaction.transaction, transaction.state) for transaction in admin.list_completed("s", "t")] == [
        (first, "COMMITTED")
    ]
    assert [transaction.transaction for transaction in admin.list_open("s", "t", label_prefix="q/")] == [first, second]
    assert controller.asked[-7:-4] == [
        (
            "POST",
            "commit-sets",
            {"writer": "w", "epoch": 7, "transactions": {"t": [first, second]}, "abortLabels": None},
        ),
        ("POST", "commit-sets", {"writer": "w", "epoch": 7, "transactions": {"u": [first]}, "abortLabels": "q"}),
        ("GET", "commit-sets/w", None),
    ]


def test_labelled_ones_are_aborted_page_by_page(
    headrace: Headrace, controller: Transactions, monkeypatch: pytest.MonkeyPatch
):
    answers = [{"aborted": 3, "continuationToken": "0" * 32}, {"aborted": 1, "continuationToken": None}]
    monkeypatch.setattr(controller, "_answer", lambda *_: answers.pop(0))
    assert headrace.admin.transactions.abort_labelled("s", "t", "q/7") == 4
    assert [body for _, _, body in controller.asked] == [
        {"labelPrefix": "q/7", "continuationToken": None},
        {"labelPrefix": "q/7", "continuationToken": "0" * 32},
    ]
    with pytest.raises(InvalidRequestError):
        headrace.admin.transactions.abort_labelled("s", "t", "a b")


def _commit_elsewhere(controller: Transactions, transaction: Transaction) -> None:
    """As another process does it: the controller merges the segments and deletes them."""
    controller.states[transaction.id] = "COMMITTED"
    for identifier, segment in controller.cluster.segments.items():
        segment.deleted = segment.deleted or identifier >> 64 == int(transaction.id, 16)


@pytest.mark.parametrize("wait", [False, True])
def test_a_commit_can_be_repeated_on_the_same_object(headrace: Headrace, controller: Transactions, wait: bool):
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        transaction.write(b"x")
        transaction.commit()
        transaction.commit(wait=wait)
        with writer.begin() as block:
            block.commit()
            block.commit(wait=wait)
    assert set(controller.states.values()) <= {"COMMITTING", "COMMITTED"}
    assert controller.events(transaction.id) == [b"x"]


def test_a_transaction_committed_elsewhere_is_not_aborted(headrace: Headrace, controller: Transactions):
    """What its writes and acknowledgements say decides whether the program writes the events again."""
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        transaction.write(b"x", "k").result(30)
        _commit_elsewhere(controller, transaction)
        controller.cluster.drop_connections()
        ack = transaction.write(b"late", "k")
        for wait in (lambda: ack.result(30), transaction.flush, transaction.commit, lambda: transaction.write(b"y")):
            with pytest.raises(IllegalStateError, match="do not write its events again") as ended:
                wait()
            assert ended.value.specific_code == "transaction_committed"


def test_a_commit_of_another_client_can_be_repeated(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer, writer.begin() as transaction:
        transaction.write(b"x", "k").result(30)
        headrace.admin.transactions.commit("s", "t", transaction.id)
        transaction.commit()
        transaction.commit(wait=True)
    assert controller.states == {transaction.id: "COMMITTED"}


@pytest.mark.anyio
async def test_a_commit_is_repeated_though_a_ping_found_it(controller: Transactions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.client.writing.transactional_writer._PINGS_PER_LEASE", 1_000)
    transport = httpx.MockTransport(controller.handle)
    client = AsyncHeadrace("http://controller", transport=transport, retry_s=1.0)
    async with client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = await writer.begin()
        await (await transaction.write(b"x"))
        controller.refusal = 412, "transaction_committed"
        await _until(lambda: transaction.accumulator.failure is not None)
        controller.refusal = None
        await transaction.commit(wait=True)
        with pytest.raises(IllegalStateError) as ended:
            await transaction.write(b"y")
        assert ended.value.specific_code == "transaction_committed"


def test_a_committed_transaction_can_be_opened_by_its_id(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        with writer.begin() as first:
            first.write(b"x")
        for _ in range(2):
            opened = writer.transaction(first.id)
            opened.commit(wait=True)
            assert opened.state() == "COMMITTED"
            with pytest.raises(IllegalStateError) as ended:
                opened.write(b"y")
            assert ended.value.specific_code == "transaction_committed"
        with writer.transaction(first.id):
            pass
        with pytest.raises(IllegalStateError) as ended:
            writer.transaction(first.id).abort()
        assert ended.value.specific_code == "transaction_committed"
    assert controller.states == {first.id: "COMMITTED"}


def test_a_refused_abort_does_not_say_that_it_aborted(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        headrace.admin.transactions.commit("s", "t", transaction.id)
        for call in (transaction.abort, transaction.abort, lambda: transaction.write(b"y")):
            with pytest.raises(IllegalStateError) as ended:
                call()
            assert ended.value.specific_code == "transaction_committed"


def test_an_aborted_transaction_stays_aborted(headrace: Headrace, controller: Transactions):
    with headrace.transactional_writer("s", "t") as writer:
        transaction = writer.begin()
        headrace.admin.transactions.abort("s", "t", transaction.id)
        for call in (transaction.commit, lambda: writer.transaction(transaction.id)):
            with pytest.raises(IllegalStateError) as ended:
                call()
            assert ended.value.specific_code == "transaction_aborted"


_NO = {"error": {"code": "unavailable", "message": "no", "retry": "later"}}


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.writing.transactional_writer._PINGS_PER_LEASE", 100)


class Pinged:
    """A controller on which the leases of some transactions cannot be renewed."""

    def __init__(self, controller: Transactions) -> None:
        self._controller = controller
        self.counts: Counter[str] = Counter()
        self.requests: list[tuple[str, ...]] = []
        self.at_once = self.at_once_max = 0
        self.unavailable: set[str] = set()
        self.silent: set[str] = set()
        self.problem: Exception | None = None

    async def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if not path.endswith(("/lease", "/transaction-leases")):
            return self._controller.handle(request)
        if self.problem is not None:
            raise self.problem
        is_batch = path.endswith("/transaction-leases")
        wanted = json.loads(request.content)["transactions"] if is_batch else [path.split("/")[-2]]
        self.requests.append(tuple(wanted))
        if not is_batch and wanted[0] in self.unavailable:
            return httpx.Response(503, json=_NO)
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await asyncio.sleep(3600 if self.silent.intersection(wanted) else 0.001)
        finally:
            self.at_once -= 1
        answer = self._controller.handle(request)
        if is_batch and answer.is_success:
            outcomes = [
                lease_outcome(lease["transaction"], 503, _NO) if lease["transaction"] in self.unavailable else lease
                for lease in answer.json()["leases"]
            ]
            answer = httpx.Response(200, json={"leases": outcomes})
        self.counts.update(
            transaction for transaction in wanted if answer.is_success and transaction not in self.unavailable
        )
        return answer

    def client(self) -> AsyncHeadrace:
        return AsyncHeadrace("http://controller", transport=httpx.MockTransport(self.handle), retry_s=30.0)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["unavailable", "silent"])
async def test_some_failing_leases_do_not_delay_the_others(controller: Transactions, quick_pings: None, kind: str):
    pinged = Pinged(controller)
    async with pinged.client() as client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        begun = [await writer.begin() for _ in range(40)]
        failing = {transaction.id for transaction in begun[:5]}
        getattr(pinged, kind).update(failing)
        healthy = [transaction.id for transaction in begun if transaction.id not in failing]
        await _until(lambda: min(pinged.counts[transaction_id] for transaction_id in healthy) >= 3)
        assert not any(pinged.counts[transaction_id] for transaction_id in failing)
        assert pinged.at_once_max <= 16
        getattr(pinged, kind).clear()
        await _until(lambda: min(pinged.counts[transaction_id] for transaction_id in failing) >= 1)
        assert all(transaction.accumulator.failure is None for transaction in begun)


@pytest.mark.anyio
async def test_the_lease_that_ends_first_is_renewed_first(controller: Transactions, quick_pings: None):
    pinged = Pinged(controller)
    async with pinged.client() as client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        begun = [await writer.begin() for _ in range(3)]
        for late, transaction in enumerate(reversed(begun)):
            writer._open[transaction] = -100.0 + late
        assert writer._due(1.0) == list(reversed(begun))
        await _until(lambda: len(pinged.counts) == 3)
        assert list(pinged.counts) == [transaction.id for transaction in reversed(begun)]
        assert pinged.requests[0] == tuple(pinged.counts), "one request for all of them"


@pytest.mark.anyio
async def test_many_leases_are_renewed_in_few_requests(controller: Transactions, quick_pings: None):
    pinged = Pinged(controller)
    async with pinged.client() as client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        begun = [await writer.begin() for _ in range(LEASES_PER_REQUEST_MAX + 1)]
        for transaction in begun:
            writer._open[transaction] = -100.0
        pinged.requests.clear()
        writer._pinged.clear()
        await _until(lambda: len(pinged.counts) == len(begun))
        assert max(map(len, pinged.requests)) == LEASES_PER_REQUEST_MAX


@pytest.mark.anyio
async def test_one_ended_transaction_of_many_is_told_alone(controller: Transactions, quick_pings: None):
    pinged = Pinged(controller)
    async with pinged.client() as client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        begun = [await writer.begin() for _ in range(3)]
        controller.states[begun[1].id] = "ABORTING"
        await _until(lambda: begun[1].accumulator.failure is not None)
        assert begun[1].accumulator.failure.specific_code == "transaction_aborted"
        pinged.counts.clear()
        await _until(lambda: set(pinged.counts) == {begun[0].id, begun[2].id})
        assert not writer._alone


@pytest.mark.anyio
async def test_unanswered_renewals_take_few_turns(controller: Transactions, quick_pings: None):
    """Far more leases than turns get no answer: they would be first each time, and the others would end."""
    pinged = Pinged(controller)
    async with pinged.client() as client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        begun = [await writer.begin() for _ in range(45)]
        pinged.silent.update(transaction.id for transaction in begun[:40])
        await _until(lambda: all(writer._alone.get(transaction) for transaction in begun[:40]))
        pinged.at_once_max = 0
        counted = dict(pinged.counts)
        await _until(
            lambda: all(
                pinged.counts[transaction.id] >= counted.get(transaction.id, 0) + 3 for transaction in begun[40:]
            )
        )
        assert 0 < pinged.at_once_max <= 4 + 5, "four repeats, and the five that are answered"
        pinged.silent.clear()
        await _until(lambda: not writer._alone)


@pytest.mark.anyio
async def test_a_pinger_that_dies_says_so(
    controller: Transactions, quick_pings: None, caplog: pytest.LogCaptureFixture
):
    pinged = Pinged(controller)
    async with pinged.client() as client, client.transactional_writer("s", "t", lease_ms=LEASE_MS) as writer:
        transaction = await writer.begin()
        pinged.problem = ZeroDivisionError("a defect")
        await _until(lambda: transaction.accumulator.failure is not None)
        for call in (lambda: transaction.write(b"x"), transaction.commit, writer.begin):
            with pytest.raises(HeadraceError, match="not renewed any more") as failed:
                await call()
            assert failed.value.specific_code == "leases_not_renewed"
    assert any("event=pinger_failed stream='s/t' transactions=1" in line for line in caplog.messages)

"""The console of a machine that does not reach the segment stores: pages show what is in S3, say so, and come back."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from real_cluster import RealCluster
from silent_store import SilentStore

from headrace.adapters.tcp.listener import bind_socket
from headrace.api.segments import SegmentEndpoint
from headrace.cli.parameters import ScopedName
from headrace.client import EventReader, Headrace, ReaderGroup, StreamCut, key_value_table
from headrace.console import store_reach, stream_pages
from headrace.console.server import ConsoleServer
from headrace.console.store_reach import EPOCHS_MEASURED_MAX, LOST_S, REACHED_S, SILENT, SILENT_S, StoreReach
from headrace.model.errors import NotFoundError, UnavailableError

ORDERS = "/streams/shop/orders"
PAGES = [
    "/streams?scope=shop",
    ORDERS,
    f"{ORDERS}/header",
    f"{ORDERS}/map",
    f"{ORDERS}/groups",
    f"{ORDERS}/open-transactions",
    f"{ORDERS}/retention",
    f"{ORDERS}/cut?from=earliest",
    f"{ORDERS}/cut?from=latest",
    f"{ORDERS}/cut?from=-5m",
    f"{ORDERS}/live?from=earliest",
    f"{ORDERS}/live?from=-5m",
    f"{ORDERS}/live?segment=2@1&from=earliest",
    f"{ORDERS}/transactions",
    "/groups?scope=shop",
    "/groups/shop/slow",
    "/groups/shop/new",
    "/tables?scope=shop",
    "/tables/shop/prices",
    "/cluster",
    "/dead-letters",
]
FROM_S3 = "From S3, about 5 to 10 s behind: no segment store can be reached from here."


@pytest.fixture
def far(far_console: ConsoleServer) -> Iterator[httpx.Client]:
    """A browser of a console that is outside the VPC."""
    base = f"http://127.0.0.1:{far_console.port}"
    with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as opened:
        assert opened.get(f"/?{urlsplit(far_console.address).query}").status_code == 200
        yield opened


def shown(browser: httpx.Client, path: str) -> str:
    answer = browser.get(path, headers={"hx-request": "true"} if "/live" in path else {})
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)


def view_of(browser: httpx.Client, query: str) -> str:
    found = re.search(r'hx-get="(/live/[0-9a-f]+)"', shown(browser, f"{ORDERS}/live?{query}"))
    assert found
    return found[1]


def offsets_in(text: str) -> list[tuple[str, int]]:
    return [(segment, int(offset)) for segment, offset in re.findall(r">(\d+@\d+):(\d+)</a>", text)]


def late_event(client: Headrace) -> str:
    """The place of a new event, which is in the store only."""
    tail = client.admin.stream_cut("shop", "orders", at="latest")
    with client.writer("shop", "orders") as writer:
        writer.write(b"late", "k").result()
    after = client.admin.stream_cut("shop", "orders", at="latest").offsets
    segment, offset = next((each, at) for each, at in tail.positions if after[each] > at)
    return f"segment={segment & 0xFFFFFFFF}@{segment >> 32}&offset={offset}&length=12"


def test_each_page_answers(far: httpx.Client) -> None:
    statuses = {path: far.get(path).status_code for path in PAGES}
    times = {path for path in PAGES if "-5m" in path}
    assert statuses == {path: 503 if path in times else 200 for path in PAGES}
    assert "choose earliest, latest or a stream cut" in far.get(f"{ORDERS}/cut?from=-5m").text


def test_a_stream_is_followed_in_s3_and_then_in_its_stores(
    far: httpx.Client, stored: Headrace, cluster: RealCluster
) -> None:
    view = view_of(far, "from=latest")
    assert FROM_S3 in shown(far, view)
    with stored.writer("shop", "orders") as writer:
        for number in range(10):
            writer.write(b"only in the store %d" % number, "k").result()
    text = shown(far, view)
    assert "only in the store" not in text
    assert "to come" in text
    cluster.stop_store()
    cluster.start_store()
    text = ""
    while "only in the store 9" not in text:
        text += shown(far, view)
    assert re.findall(r"only in the store (\d)", text) == list("0123456789")
    cluster.far_reach_stores = True
    with stored.writer("shop", "orders") as writer:
        writer.write(b"over the store again", "k").result()
    text = ""
    while "over the store again" not in text:
        text += shown(far, view)
    assert "only in the store" not in text
    assert FROM_S3 not in shown(far, view)


def test_a_view_leaves_stores_that_go_away(far: httpx.Client, cluster: RealCluster) -> None:
    cluster.far_reach_stores = True
    view = view_of(far, "from=earliest")
    assert FROM_S3 not in shown(far, view)
    cluster.far_reach_stores = False
    while FROM_S3 not in shown(far, view):
        pass


@pytest.mark.parametrize("offset", ["3", "99999999", "4611686018427387904"])
def test_a_place_without_an_event_is_refused_without_stores(far: httpx.Client, offset: str) -> None:
    answer = far.get(f"{ORDERS}/event?segment=2@1&offset={offset}&length=20")
    assert answer.status_code == 400, answer.text
    assert "not one event" in answer.text


def test_a_segment_and_an_event_come_from_s3(far: httpx.Client) -> None:
    view, text = view_of(far, "segment=2@1&from=earliest"), ""
    while "order" not in text:
        text = shown(far, view)
    assert FROM_S3 in text
    assert {segment for segment, _ in offsets_in(text)} == {"2@1"}
    assert [offset for _, offset in offsets_in(text)] == sorted(offset for _, offset in offsets_in(text))
    address = re.search(r'href="([^"]+/event[^"]+)"', text)
    assert address
    assert "order" in shown(far, address[1])


def test_an_event_is_not_waited_for_without_s3(far: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(store_reach, "STORE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(stream_pages.StreamPages, "_first_batch", lambda *_: may_end.wait(60))
    answer = far.get(f"{ORDERS}/event?segment=2@1&offset=0&length=20")
    may_end.set()
    assert answer.status_code == 503
    assert "nor S3 has answered" in answer.text


def test_an_event_that_s3_does_not_have_is_said_at_once(
    far: httpx.Client, stored: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = late_event(stored)
    answer = far.get(f"{ORDERS}/event?{place}")
    assert answer.status_code == 503
    assert "not in S3 yet" in answer.text


def test_a_group_is_what_s3_has_of_it(far: httpx.Client, cluster: RealCluster) -> None:
    text = shown(far, "/groups/shop/slow")
    assert FROM_S3 in text
    assert "reader-1" not in text  # it has left
    assert re.search(r"shop/orders</a>: [\d.]+ [kM]?B behind", text)
    assert "no reader has joined yet" in shown(far, "/groups/shop/new")
    parts = shown(far, f"{ORDERS}/groups")
    assert FROM_S3 in parts
    assert "headrace group reset shop/lost" in parts
    cluster.far_reach_stores = True
    while FROM_S3 in text:
        text = shown(far, "/groups/shop/slow")
    assert "events" in text


def test_a_table_says_why_it_has_no_entries(far: httpx.Client, cluster: RealCluster) -> None:
    text = shown(far, "/tables/shop/prices")
    assert "Entries are not shown: no segment store can be reached from here." in text
    assert "key0" not in text
    cluster.far_reach_stores = True
    while "key00049" not in text:
        text = shown(far, "/tables/shop/prices")


@pytest.mark.parametrize("path", ["/tables/shop/prices", "event"])
def test_a_page_that_fails_at_a_store_leaves_it_for_the_others(
    far: httpx.Client, stored: Headrace, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A store that accepts connections and does not answer lets a page wait, and not all of them in turn."""
    lost: list[StoreReach] = []
    monkeypatch.setattr(StoreReach, "lost", lambda reach: lost.append(reach))
    monkeypatch.setattr(StoreReach, "_found", lambda *_: not lost)
    monkeypatch.setattr(key_value_table, "RETRY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(stream_pages, "STORE_PATIENCE_S", 0.1)
    if path == "event":
        place = late_event(stored)
        assert far.get(f"{ORDERS}/event?{place}").status_code == 503
        assert "not in S3 yet" in far.get(f"{ORDERS}/event?{place}").text
    else:
        assert "Entries are not shown" in shown(far, path)
    assert len(lost) == 1


def test_pages_answer_while_the_stores_are_down(
    far: httpx.Client, cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller waits some 20 s for a store. One page waits for it, for a moment, and the others do not."""
    monkeypatch.setattr(store_reach, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(store_reach, "SILENT_S", 1e6)
    asked: list[object] = []
    submit = ThreadPoolExecutor.submit

    def count(pool: Any, ask: Any, *arguments: Any) -> Any:
        if pool._thread_name_prefix == "console-questions":
            asked.append(ask)
        return submit(pool, ask, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", count)
    cluster.stop_store()
    try:
        statuses = {path: far.get(path).status_code for path in PAGES}
        streams, header = shown(far, "/streams?scope=shop"), shown(far, f"{ORDERS}/header")
        whole = shown(far, ORDERS)
    finally:
        cluster.start_store()
    said = {path for path in PAGES if "/live" in path or "/retention" in path or "cut?from=-5m" in path}
    said.add(f"{ORDERS}/cut?from=latest")
    said.add(f"{ORDERS}/cut?from=earliest")
    assert {path for path, status in statuses.items() if status == 503} <= said
    assert {path for path, status in statuses.items() if status not in (200, 503)} == set()
    assert len(asked) <= 6  # those of the first page, at once
    assert "orders" in streams
    assert "size not known" in header
    assert "Sizes of open segments are not known" in whole
    assert whole.count('<a id="segment-') == 5


class Stores:
    """The client for `StoreReach`: segment stores at an address of this machine."""

    def __init__(self, port: int) -> None:
        self.port, self.asked = port, 0
        self.error: Exception | None = None
        client: Any = self
        self.admin = client
        self.now_s = 100.0
        self.reach = StoreReach(client, lambda: self.now_s)

    def epoch_segments(self, scope: str, stream: str, epoch: int | None = None) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        segment = type("Segment", (), {"segment_id": 7})
        return type("Epoch", (), {"sealed": False, "segments": (segment,), "epoch": 0})

    def get_stream(self, scope: str, stream: str) -> Any:
        return type("View", (), {"epoch": EPOCHS_MEASURED_MAX})

    def stream_cut_distance(self, scope: str, stream: str, *, from_cut: object, to_cut: object) -> int:
        self.asked += 1
        return 70

    def endpoint(self, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        assert segment_id == 7
        return SegmentEndpoint("127.0.0.1", self.port, "z", 0, 0)


STREAM = ScopedName("s", "t")


class BegunCalls(ThreadPoolExecutor):
    """Calls have begun when they are submitted: the end of a short time-out cancels one that waits for its thread."""

    def submit(self, ask: Any, /, *arguments: Any, **named: Any) -> Any:
        begun = threading.Event()

        def begin() -> Any:
            begun.set()
            return ask(*arguments, **named)

        asked = super().submit(begin)
        begun.wait()
        return asked


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """A port on which a store says Hello, and one on which none listens."""
    with closing(SilentStore()) as store, bind_socket("127.0.0.1", 0) as closed:
        yield store.port, closed.getsockname()[1]


@pytest.fixture
def silent_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port on which connections are accepted, and nothing is ever answered."""
    monkeypatch.setattr(store_reach, "REACH_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_store_that_accepts_and_is_silent_is_not_reached(silent_port: int) -> None:
    stores = Stores(silent_port)
    assert [stores.reach.to_stream(STREAM) for _ in range(3)] == [False] * 3
    assert stores.asked == 1
    stores.reach.close()


def test_pages_read_from_s3_while_stores_accept_and_are_silent(
    far: httpx.Client, silent_port: int, cluster: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_closed_port", silent_port)
    assert FROM_S3 in shown(far, view_of(far, "from=earliest"))
    assert FROM_S3 in shown(far, view_of(far, "segment=2@1&from=earliest"))
    assert "From S3" in shown(far, "/groups/shop/slow")
    assert "Entries are not shown" in shown(far, "/tables/shop/prices")


def test_a_store_that_falls_silent_is_not_waited_for_again(
    ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reach, "STORE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(store_reach, "QUESTIONS_AT_ONCE_MAX", 1)
    stores, may_end = Stores(ports[0]), threading.Event()
    assert stores.reach.to_stream(STREAM)
    with pytest.raises(UnavailableError, match="nor S3 has answered"):
        stores.reach.store_answer(lambda: may_end.wait(30))
    assert not stores.reach.to_stream(STREAM)
    assert stores.reach.answer(lambda: 5) == 5  # of the controller, which the page still asks
    may_end.set()
    stores.reach.close()


def test_a_store_that_refuses_a_page_counts_as_lost(ports: tuple[int, int]) -> None:
    stores = Stores(ports[0])
    assert stores.reach.to_stream(STREAM)

    def refuse() -> None:
        raise UnavailableError("the store is shutting down")

    with pytest.raises(UnavailableError, match="shutting down"):
        stores.reach.store_answer(refuse)
    assert not stores.reach.to_stream(STREAM)
    stores.reach.close()


def test_a_store_is_tried_once_for_a_while(ports: tuple[int, int]) -> None:
    stores = Stores(ports[1])
    assert [stores.reach.to_stream(STREAM) for _ in range(5)] == [False] * 5
    stores.now_s += LOST_S - 1
    assert not stores.reach.to_stream(STREAM)
    assert stores.asked == 1
    stores.port = ports[0]
    stores.now_s += 1
    assert [stores.reach.to_stream(STREAM) for _ in range(5)] == [True] * 5
    assert stores.asked == 2
    stores.port = ports[1]
    stores.now_s += REACHED_S
    assert not stores.reach.to_stream(STREAM)
    stores.reach.close()


def test_of_pages_at_the_same_time_one_tries_a_store(ports: tuple[int, int]) -> None:
    stores = Stores(ports[0])
    both, endpoint = threading.Barrier(2), stores.endpoint

    def slow_endpoint(scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        both.wait(30)
        return endpoint(scope, stream, segment_id)

    vars(stores)["endpoint"] = slow_endpoint
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(stores.reach.to_stream, STREAM) for _ in range(2)]
        both.wait(30)
        assert [answer.result(30) for answer in answers] == [True, True]
    assert stores.asked == 1
    stores.reach.close()


def test_a_store_that_fails_a_reader_counts_as_lost(ports: tuple[int, int]) -> None:
    stores = Stores(ports[0])
    assert stores.reach.to_stream(STREAM)
    stores.reach.lost()
    assert not stores.reach.to_stream(STREAM)
    stores.reach.close()


def test_a_stream_that_is_gone_says_nothing_about_stores(ports: tuple[int, int]) -> None:
    stores = Stores(ports[0])
    stores.error = NotFoundError("there is no such stream")
    with pytest.raises(NotFoundError):
        stores.reach.to_stream(STREAM)
    stores.error = None
    assert stores.reach.to_stream(STREAM)
    stores.error = UnavailableError("no store has claimed container 3")
    stores.now_s += REACHED_S
    assert not stores.reach.to_stream(STREAM)
    stores.reach.close()


def test_an_answer_that_does_not_come_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reach, "ThreadPoolExecutor", BegunCalls)
    monkeypatch.setattr(store_reach, "ANSWER_TIMEOUT_S", 0.01)
    stores, may_end, asked = Stores(0), threading.Event(), []

    def wait() -> int:
        asked.append(1)
        may_end.wait(30)
        return 5

    try:
        for _ in range(3):
            with pytest.raises(UnavailableError, match=re.escape(SILENT)):
                stores.reach.answer(wait)
        assert stores.reach.answer_or_none(wait) is None
        assert asked == [1]
    finally:
        may_end.set()
    monkeypatch.setattr(store_reach, "ANSWER_TIMEOUT_S", 30)
    stores.now_s += SILENT_S
    assert stores.reach.answer(wait) == 5
    stores.reach.close()


def test_a_refusal_of_one_stream_is_not_that_of_all() -> None:
    stores = Stores(0)

    def not_ready() -> None:
        raise UnavailableError("it is being created")

    with pytest.raises(UnavailableError, match="being created"):
        stores.reach.answer(not_ready)
    assert stores.reach.answer(lambda: 5) == 5
    stores.reach.close()


def test_the_distance_over_very_many_epochs_is_not_asked_for() -> None:
    """Live views and groups measure it every few seconds, and the controller reads all epochs between."""
    stores = Stores(0)
    assert stores.reach.behind(STREAM, {7: 5}, newest_epoch=EPOCHS_MEASURED_MAX + 1) is None
    assert stores.asked == 0
    assert stores.reach.behind(STREAM, {7: 5}) == 70
    assert stores.reach.behind(STREAM, {1 << 32: 5, 2 << 32: 5}, newest_epoch=EPOCHS_MEASURED_MAX + 1) == 70
    stores.reach.close()


def test_the_end_of_a_segment() -> None:
    """From the tail of the stream, or the length of a sealed segment."""
    stores = Stores(0)
    lengths = {5: 50, 6: None}

    def sealed_length(scope: str, stream: str, segment_id: int) -> int | None:
        if segment_id not in lengths:
            raise NotFoundError("it was truncated")
        return lengths[segment_id]

    vars(stores).update(stream_cut=lambda *_, at: StreamCut.of("s", "t", {7: 70}), sealed_length=sealed_length)
    assert stores.reach.segment_end(STREAM, 7) == (70, False)
    assert stores.reach.segment_end(STREAM, 5) == (50, True)
    with pytest.raises(UnavailableError, match="is being sealed"):
        stores.reach.segment_end(STREAM, 6)
    with pytest.raises(NotFoundError, match="does not have it"):
        stores.reach.segment_end(STREAM, 4)
    stores.reach.close()


@pytest.mark.parametrize("kind", [EventReader, ReaderGroup])
@pytest.mark.parametrize("ask", [StoreReach.answer, StoreReach.store_answer])
def test_what_opens_too_late_is_closed(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[StoreReach, Callable[[], Any]], Any],
    kind: type[EventReader] | type[ReaderGroup],
) -> None:
    monkeypatch.setattr(store_reach, "ThreadPoolExecutor", BegunCalls)
    for limit in ("ANSWER_TIMEOUT_S", "STORE_TIMEOUT_S"):
        monkeypatch.setattr(store_reach, limit, 0.01)
    stores, may_open, closed = Stores(0), threading.Event(), threading.Event()

    def open_late() -> Any:
        may_open.wait(30)
        return kind.__new__(kind)

    monkeypatch.setattr(kind, "close", lambda _: closed.set())
    with pytest.raises(UnavailableError):
        ask(stores.reach, open_late)
    may_open.set()
    assert closed.wait(30)
    stores.reach.close()


def test_another_server_at_the_address_of_a_store_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        stores = Stores(server.getsockname()[1])
        reached = pool.submit(stores.reach.to_stream, STREAM)
        with server.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            assert not reached.result(30)
    stores.reach.close()

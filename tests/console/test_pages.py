"""The pages of the console: what they show, what they refuse, and what hostile text becomes."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest
from msgspec.structs import replace

from headrace.adapters.system_clock import SystemClock
from headrace.api.cluster import (
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    ContainerView,
    StoreView,
)
from headrace.client import Headrace, ScalingPolicy, TableConfiguration
from headrace.client.synchronous.synchronous_admin import Admin
from headrace.client.synchronous.synchronous_operators_admin import ClusterAdmin
from headrace.console import live_views
from headrace.console.console_state import _templates
from headrace.console.live_views import LIVE_VIEWS_MAX
from headrace.model.cluster import ContainerStanding, StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LogState, ReplicaId
from headrace.model.limits import EVENT_HEADER_BYTES

ORDERS = "/streams/shop/orders"


def shown(browser: httpx.Client, path: str, status: int = 200) -> str:
    answer = browser.get(path, headers={"hx-request": "true"} if "/live" in path else {})
    assert answer.status_code == status, answer.text
    return answer.text


def view_of(browser: httpx.Client, query: str) -> str:
    found = re.search(r'hx-get="(/live/[0-9a-f]+)"', shown(browser, f"{ORDERS}/live?{query}"))
    assert found
    return found[1]


def events_of(browser: httpx.Client, query: str, wanted: str) -> str:
    """What a live view shows until `wanted` is in it."""
    view, text = view_of(browser, query), ""
    while wanted not in text:
        text += shown(browser, view)
    return text


def test_streams_are_listed_with_their_numbers(browser: httpx.Client):
    text = shown(browser, "/streams?scope=shop")
    assert 'href="/streams/shop/orders"' in text
    assert "&lt;i&gt;tag&lt;/i&gt;" in text
    assert "headrace top shop" in text


def test_the_page_of_a_stream_has_map_and_table(browser: httpx.Client):
    text = shown(browser, ORDERS)
    assert "2 open segments" in text
    for segment in ("0@0", "1@0", "2@1", "3@1", "4@2"):
        assert f">{segment}</a></th>" in text
    assert text.count('<a id="segment-') == 5
    assert 'class="truncated"' in text
    assert "epoch 1: 1 split" in text
    assert "epoch 2: 1 merge" in text


def test_older_windows_are_linked(browser: httpx.Client):
    text = shown(browser, f"{ORDERS}?until=1")
    assert text.count('<a id="segment-') == 2
    assert "Newest" in text


def test_a_key_is_followed_through_its_segments(browser: httpx.Client):
    text = shown(browser, f"{ORDERS}?key=customer-7")
    assert "of the key space" in text
    assert 'class="key"' in text


def test_parts_of_the_page_of_a_stream(browser: httpx.Client, client: Headrace):
    assert "job-7/42" in shown(browser, f"{ORDERS}/open-transactions")
    assert "Retention waits for no group" in shown(browser, f"{ORDERS}/retention")
    groups = shown(browser, f"{ORDERS}/groups")
    assert 'href="/groups/shop/slow"' in groups
    assert "no reader has joined yet" in groups
    assert "headrace group reset shop/lost" in groups
    assert re.search(r"/groups/shop/slow.*?B</td>", groups, re.DOTALL)
    assert ">slow</text>" in shown(browser, f"{ORDERS}/map")
    assert "kept" in shown(browser, f"{ORDERS}/header")
    assert "4@2:" in unescape(shown(browser, f"{ORDERS}/cut?from=latest"))


def test_other_pages(browser: httpx.Client):
    assert "headrace group describe shop/slow" in shown(browser, "/groups/shop/slow")
    assert "shop/slow" in shown(browser, "/groups?scope=shop")
    assert "shop/prices" in shown(browser, "/tables?scope=shop")
    assert "job-7/42" in shown(browser, f"{ORDERS}/transactions")
    assert "container" in shown(browser, "/cluster")
    assert "Every request has been carried out" in shown(browser, "/dead-letters")


def store(name: str, zone: str, containers: tuple[int, ...], lease_until_ms: int) -> StoreView:
    return StoreView.of(
        StoreLease(name, "10.0.0.1", 12345, zone, 1, "volume", "", 0, lease_until_ms=lease_until_ms), containers
    )


def test_the_cluster_is_shown_by_zones(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    assert "No store has registered" in shown(browser, "/cluster")
    in_100_days_ms = SystemClock().now_ms() + 100 * 86_400_000
    first, second = store("a-1", "a", (0, 1), in_100_days_ms), store("b-1", "b", (2,), in_100_days_ms)
    second = replace(second, state=StoreState.LOST, ended_ms=0, take_over_ms=30_000)
    states = (ContainerStanding.SERVED, ContainerStanding.MOVING, ContainerStanding.WAITING)
    containers = tuple(ContainerView.of(number, "a-1", state, None, 1) for number, state in enumerate(states))
    monkeypatch.setattr(ClusterAdmin, "get", lambda _: ClusterView(1, 3, (second, first)))
    monkeypatch.setattr(ClusterAdmin, "containers", lambda _: ContainerMapView(1, containers))
    text = shown(browser, "/cluster")
    assert "2 stores</span><span>2 zones</span><span>3 containers</span>" in text
    assert "2 containers not served" in text
    zone, other = text.split("<section")[1:3]
    assert 'aria-label="Zone a"' in zone
    assert re.search("<dt>Lease</dt><dd>(100 d|99 d 23 h) left</dd>", zone)
    assert re.findall(r"<li(?: class=\"warning\")?>([^<]+)</li>", zone) == ["0", "1 moving"]
    assert 'aria-label="Zone b"' in other
    assert '<span class="warning">lost</span>' in other
    assert "<dd>until <time>1970-01-01 00:00:30Z</time></dd>" in other
    assert "<dt>Lease</dt>" not in other


def test_the_cluster_counts_the_copies_of_a_store(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    replica = ReplicaId(bytes(16))
    lease = StoreLease("a-1", "10.0.0.1", 12345, "a", 1, "volume", "", 0, replica_id=replica.hex())
    log = ContainerLog(1, LogState.OPEN, (replica,), ())
    logs = tuple(ContainerLogView.of(number, log, 1, [lease]) for number in range(3))
    monkeypatch.setattr(ClusterAdmin, "get", lambda _: ClusterView(1, 3, (StoreView.of(lease, ()),)))
    monkeypatch.setattr(ClusterAdmin, "logs", lambda _: ContainerLogsView(logs))
    assert "<dt>Copies of logs</dt><dd>3</dd>" in shown(browser, "/cluster")


def test_names_of_stores_are_shown_without_control_characters(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    hostile = replace(store("<i>\x1b[31m", '"><i>\x1b[31m', (0,), 0), host="<i>\x1b[31m")
    monkeypatch.setattr(ClusterAdmin, "get", lambda _: ClusterView(1, 1, (hostile,)))
    text = browser.get("/cluster").text
    assert "\x1b" not in text
    assert "<i>" not in text
    assert text.count("\\x1b[31m") == 5


def test_a_table_is_shown_by_pages(browser: httpx.Client):
    first = shown(browser, "/tables/shop/prices")
    assert "&lt;u&gt;49&lt;/u&gt;" in first
    assert "key00050" not in first
    following = re.search(r'href="(/tables/shop/prices\?after=[0-9a-f]+)"', first)
    assert following
    second = shown(browser, following[1])
    assert "key00049" not in second
    assert "key00050" in second
    assert "key00059" in second


def test_a_table_of_long_keys_is_shown_by_pages(browser: httpx.Client, client: Headrace):
    client.admin.tables.create("shop", "long", TableConfiguration(1, 1_000, 0))
    with client.key_value_table("shop", "long") as table:
        for number in range(51):
            table.put(b"k" * 995 + b"%05d" % number, b"<u>%d</u>" % number)
    following = re.search(r'href="(/tables/shop/long\?after=[0-9a-f]+)"', shown(browser, "/tables/shop/long"))
    assert following
    assert "&lt;u&gt;50&lt;/u&gt;" in shown(browser, following[1])


def test_a_stream_cut_of_many_segments_is_taken_whole(browser: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "wide", scaling=ScalingPolicy.fixed(120))
    cut = ",".join(f"{number}@0:0" for number in range(120))
    assert len(cut) > 500
    assert f'value="{cut}"' in shown(browser, f"/streams/shop/wide/cut?from={cut}")


def test_only_the_oldest_transactions_are_on_the_page(browser: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "busy", scaling=ScalingPolicy.fixed(1))
    for number in range(11):
        client.admin.transactions.create("shop", "busy", lease_ms=60_000, label=f"job-{number}")
    assert "The oldest 10 of 11" in shown(browser, "/streams/shop/busy/open-transactions")
    assert "job-10" in shown(browser, "/streams/shop/busy/transactions")


def test_hostile_events_are_text(browser: httpx.Client):
    text = events_of(browser, "from=earliest&filter=script", "alert(1)")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in text
    assert "<script>alert" not in text


def test_bytes_are_shown_in_hexadecimal_digits(browser: httpx.Client):
    assert "00 ff 00 ff" in events_of(browser, "from=earliest&filter=%00", "00 ff")


def test_a_huge_event_is_cut(browser: httpx.Client):
    line = events_of(browser, "from=earliest&filter=xxxx", "xxxx")
    assert "3.1 MB" in line
    assert len(line) < 10_000
    address = re.search(r'href="([^"]+/event[^"]+)"', line)
    assert address
    page = shown(browser, unescape(address[1]))
    assert "Only the first part is shown" in page
    assert 1 << 20 <= len(page) < (1 << 20) + 10_000


def test_one_segment_is_followed(browser: httpx.Client, client: Headrace):
    text = events_of(browser, "segment=2@1&from=earliest", "order")
    assert ">2@1:0</a>" in text
    assert ">4@2:" not in text
    assert "the segment was truncated" in shown(browser, f"{ORDERS}/live?segment=9@9", 404)


def test_one_segment_is_followed_from_a_place(browser: httpx.Client, client: Headrace):
    offsets = re.findall(r">2@1:([0-9]+)</a>", events_of(browser, "segment=2@1&from=earliest", "order"))
    assert len(offsets) > 2
    after = events_of(browser, f"segment=2@1&from=2@1:{offsets[2]},3@1:0,1@0:-1", "order")
    assert f">2@1:{offsets[2]}</a>" in after
    assert f">2@1:{offsets[1]}</a>" not in after
    view = view_of(browser, "segment=3@1&from=2@1:0,4@2:0")
    assert ">3@1:" not in shown(browser, view)


def test_a_live_view_shows_new_events(browser: httpx.Client, client: Headrace):
    view = view_of(browser, "from=latest")
    shown(browser, view)
    with client.writer("shop", "orders") as writer:
        writer.write(b'{"order": "brand new"}', "k").result()
    text = ""
    while "brand new" not in text:
        text = shown(browser, view)
    assert "Resume" in shown(browser, f"{view}/paused")
    assert 'hx-trigger="load, every 1s"' in shown(browser, f"{view}/resumed")


def test_the_number_of_live_views_is_bounded(browser: httpx.Client):
    for _ in range(LIVE_VIEWS_MAX + 1):
        answer = browser.get(f"{ORDERS}/live", headers={"hx-request": "true"})
        if answer.status_code != 200:
            break
    assert answer.status_code == 429
    assert f"{LIVE_VIEWS_MAX} live views are open" in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/streams/shop/none", 404),
        ("/streams/none/none", 404),
        ("/streams/shop/%22%3E%3Cscript%3E", 400),
        ("/streams/sh%20op/x", 400),
        ("/groups/shop/none", 404),
        ("/tables/shop/none", 404),
        ("/tables/shop/prices?after=zz", 400),
        ("/streams?scope=..", 400),
        ("/streams?scope=shop&page=x", 400),
        (f"{ORDERS}?until=x", 400),
        (f"{ORDERS}?epochs=100000", 400),
        (f"{ORDERS}?segment=x", 400),
        (f"{ORDERS}/live?from=yesterday", 400),
        pytest.param(f"{ORDERS}?key={'k' * 501}", 400, id="long key"),
        pytest.param(f"{ORDERS}/live?from={'2@1:0,' * 4_000}", 400, id="long cut"),
        (f"{ORDERS}/event?segment=0@0&offset=0&length=99999999999", 400),
        (f"{ORDERS}/event?segment=2@1&offset=3&length=20", 400),
        ("/live/none", 404),
        ("/nothing", 404),
    ],
)
def test_a_refusal_is_a_readable_page(browser: httpx.Client, path: str, status: int):
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    assert "<h1>" in answer.text
    assert "Traceback" not in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{ORDERS}/event?segment=2@1&offset=3&length=20", "bytes 3 to 23 of segment 2@1 are not one event"),
        (f"{ORDERS}/event?segment=2@1&offset=0&length=2000", "are not one event: the first one ends at byte"),
        (f"{ORDERS}/event?segment=2@1&offset=0&length=0", "are not one event: they are 0"),
        (f"{ORDERS}/event?segment=4@2&offset=99999999&length=20", "the segment ends at byte"),
        (f"{ORDERS}/live?from=2@1:11,3@1:0,1@0:-1", "no event begins at an offset of the chosen stream cut"),
    ],
)
def test_a_place_without_an_event_is_refused_with_advice(
    browser: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, says: str
):
    monkeypatch.setattr(live_views, "IDLE_S", 0.0)  # views of other tests make room
    answer = browser.get(path)
    view = re.search(r'hx-get="(/live/[0-9a-f]+)"', answer.text)
    while view is not None and answer.status_code == 200:
        answer = browser.get(view[1])
    assert answer.status_code == 400, answer.text
    assert says in unescape(answer.text)
    assert view is not None or f'<a href="{ORDERS}">Back to shop/orders</a>' in answer.text


def test_two_large_events_are_not_shown_as_one(browser: httpx.Client, client: Headrace):
    """A batch ends after the first one."""
    client.admin.create_stream("shop", "large", scaling=ScalingPolicy.fixed(1))
    with client.writer("shop", "large") as writer:
        for _ in range(2):
            writer.write(b"x" * (1 << 20), "k")
    size = (1 << 20) + EVENT_HEADER_BYTES
    one = "/streams/shop/large/event?segment=0@0&offset=0&length="
    assert "<span>offset 0</span><span>1.0 MB</span>" in shown(browser, f"{one}{size}")
    for length in (2 * size, 2 * size - 3):
        answer = browser.get(f"{one}{length}")
        assert answer.status_code == 400
        assert f"the first one ends at byte {size}" in answer.text


@pytest.mark.parametrize("path", ["/streams", "/groups", "/tables"])
def test_without_a_scope_a_list_says_how_to_begin(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str):
    monkeypatch.setattr(Admin, "list_scopes", lambda _: [])
    assert "There is no scope yet" in shown(browser, path)


def test_numbers_and_times_are_put_into_pages_in_words():
    page = _templates().from_string("{{ 0.0|behind }}, {{ 40.0|behind }}, {{ 0|time }}")
    assert page.render() == "&lt; 30 s, 40 s, <time>1970-01-01 00:00:00Z</time>"

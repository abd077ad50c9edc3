"""Pages of streams with very many epochs, and with very many segments at one time: requests and nodes are bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from long_streams import record_epochs
from real_cluster import RealCluster, connected_to

from headrace.cli import session
from headrace.client import GroupStream, Headrace, ReaderGroupConfiguration, ScalingPolicy
from headrace.console.group_watch import GROUPS_PER_PAGE, LISTED_REQUESTS_MAX
from headrace.console.segment_spans import SEGMENTS_DRAWN_MAX
from headrace.console.server import ConsoleServer
from headrace.console.store_reach import EPOCHS_MEASURED_MAX
from headrace.console.stream_query import EPOCH_CHOICES, EPOCHS_DEFAULT
from headrace.model.limits import EPOCHS_BETWEEN_MAX
from headrace.model.names import segment_name
from headrace.ports.segment_stores import SegmentScaleRate

FEW, MANY = 300, EPOCHS_BETWEEN_MAX + 2_000
WIDE = 1_000
PARTS = (
    "",
    "/header",
    "/map",
    "/map?epochs=200",
    "/map?until=150",
    "/groups",
    "/retention",
    "/open-transactions",
    "/cut?from=earliest",
)
NODES_PER_SEGMENT = 6
NODES_OF_THE_REST = 400


class Counted:
    """A browser of a console, and the requests that the console sent for it."""

    def __init__(self, browser: httpx.Client, requests: list[str]) -> None:
        self._browser, self._requests = browser, requests

    def page(self, path: str) -> tuple[str, int]:
        """The text of a page that was asked for before, and how many requests it took."""
        self.first_page(path)
        return self.first_page(path)

    def first_page(self, path: str) -> tuple[str, int]:
        """As `page`, for a page that was not asked for before."""
        self._requests.clear()
        answer = self._browser.get(path, headers={"hx-request": "true"} if "/live" in path else {})
        assert answer.status_code == 200, (path, answer.text)
        return answer.text, len(self._requests)


@pytest.fixture(scope="module")
def counted(cluster: RealCluster) -> Iterator[Counted]:
    """The streams `shop/few` and `shop/many`, with one segment after the other, and `shop/wide`."""
    requests: list[str] = []

    def open_client(*_: object) -> Headrace:
        made = connected_to(cluster)
        made._core._api._client.event_hooks = {"request": [note]}
        return made

    async def note(request: httpx.Request) -> None:
        requests.append(str(request.url))

    with pytest.MonkeyPatch.context() as patch, connected_to(cluster) as near:
        near.admin.create_scope("shop")
        near.admin.create_stream("shop", "wide", scaling=ScalingPolicy.fixed(WIDE))
        for name, epochs in (("few", FEW), ("many", MANY)):
            near.admin.create_stream("shop", name, scaling=ScalingPolicy.fixed(1))
            (newest,) = record_epochs(cluster.metadata, "shop", name, epochs)[-1].segments
            full_name = segment_name("shop", name, newest.segment_id)
            cluster.segment_stores.create_segment(full_name, SegmentScaleRate())
        patch.setattr(session, "open_client", open_client)
        console = ConsoleServer("http://controller")
        console.start()
        base = f"http://127.0.0.1:{console.port}"
        with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as browser:
            browser.get(f"/?{urlsplit(console.address).query}")
            yield Counted(browser, requests)
        console.stop()
        assert console.failure is None


def nodes(text: str) -> int:
    return len(re.findall(r"<(?:a|g|rect|line|text|title)\b", text))


@pytest.mark.parametrize("part", PARTS)
def test_the_number_of_epochs_changes_no_page(counted: Counted, part: str) -> None:
    few, requests_of_few = counted.page(f"/streams/shop/few{part}")
    many, requests_of_many = counted.page(f"/streams/shop/many{part}")
    assert requests_of_many <= requests_of_few + 1  # where the head is
    assert many.count("<tr>") <= few.count("<tr>")


def test_what_is_not_measured_is_said(counted: Counted) -> None:
    assert "size not known" in counted.page("/streams/shop/many/header")[0]
    assert f"has {MANY - 1:,} epochs" in counted.page("/streams/shop/many/retention")[0]
    assert "kept" in counted.page("/streams/shop/few/header")[0]
    assert FEW < EPOCHS_MEASURED_MAX < MANY


def test_a_segment_of_long_ago_is_followed(counted: Counted) -> None:
    middle = f"{MANY // 2}@{MANY // 2}"
    text, _ = counted.page(f"/streams/shop/many/live?segment={middle}&from=earliest")
    found = re.search(r'hx-get="(/live/[0-9a-f]+)"', text)
    assert found


def test_a_map_has_as_many_nodes_as_its_window(counted: Counted) -> None:
    for epochs in EPOCH_CHOICES:
        query = "" if epochs == EPOCHS_DEFAULT else f"?epochs={epochs}"
        text, requests = counted.page(f"/streams/shop/many/map{query}")
        assert nodes(text) <= NODES_OF_THE_REST + (NODES_PER_SEGMENT + 5) * epochs
        assert requests <= 4


def test_a_thousand_segments_at_one_time_are_drawn(counted: Counted) -> None:
    text, requests = counted.page("/streams/shop/wide/map")
    assert text.count('<a id="segment-') == WIDE <= SEGMENTS_DRAWN_MAX
    assert nodes(text) <= NODES_OF_THE_REST + NODES_PER_SEGMENT * WIDE
    assert requests <= 4
    assert len(text) < 500 * WIDE


def test_a_list_of_groups_costs_a_bounded_number_of_requests(counted: Counted, cluster: RealCluster) -> None:
    with connected_to(cluster) as near:
        admin = near.admin
        admin.create_scope("many")
        streams = [f"s{number}" for number in range(LISTED_REQUESTS_MAX)]
        for name in streams:
            admin.create_stream("many", name, scaling=ScalingPolicy.fixed(2))
        with near.writer("many", "s0") as writer:
            writer.write(b"x" * 992, "key").result()
        for number in range(GROUPS_PER_PAGE + 2):
            read = streams if number == 1 else ["s0"]
            configuration = ReaderGroupConfiguration(tuple(GroupStream("many", name) for name in read))
            admin.reader_groups.create("many", f"g{number:02}", configuration)
            near.reader_group("many", f"g{number:02}").close()
        admin.reader_groups.create("many", "g00-unused", ReaderGroupConfiguration((GroupStream("many", "s0"),)))
    text, requests = counted.first_page("/groups?scope=many")
    assert requests <= 10 + GROUPS_PER_PAGE * (4 + LISTED_REQUESTS_MAX)
    rows = {
        row.partition("</a>")[0]: row for row in re.findall(r'href="/groups/many/[^>]*>many/(.*?)</tr>', text, re.S)
    }
    assert len(rows) == GROUPS_PER_PAGE
    assert ">1,000 B</td>" in rows["g00"] or "1.0 kB</td>" in rows["g00"], rows["g00"]
    assert rows["g01"].count("not known") == 1  # it reads too many streams
    assert "no reader has joined yet" in rows["g00-unused"]
    assert rows["g00-unused"].count("not known") == 1
    again, requests = counted.first_page("/groups?scope=many")
    assert requests <= 4  # the scopes, and the group without a state, which is opened again
    assert "page 1 of 2" in again
    assert "g11" in counted.first_page("/groups?scope=many&page=2")[0]

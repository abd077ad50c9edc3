"""A controller that is away for longer than a request is repeated, just when a segment has been replaced."""

from __future__ import annotations

import httpx
from scripted_cluster import Cluster

from headrace.client import connect

AWAY_FOR_REQUESTS = 8
RETRY_S = 0.02


def test_writers_and_readers_wait_for_successors(cluster: Cluster) -> None:
    """They give up after their own time, and not after that of one request."""
    asked = {"scaling": AWAY_FOR_REQUESTS, "reading": AWAY_FOR_REQUESTS}
    now = "scaling"

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/successors") and asked[now] > 0:
            asked[now] -= 1
            raise httpx.ConnectError("no controller there")
        return cluster.handle(request)

    with connect("http://controller", transport=httpx.MockTransport(answer), retry_s=RETRY_S) as headrace:
        with headrace.writer("s", "t") as writer:
            writer.write(b"before", "key").result(timeout_s=30)
            cluster.scale([1], [(0.5, 1.0)])
            writer.write(b"behind", "key").result(timeout_s=30)
        now = "reading"
        cluster.seal_stream()
        with headrace.reader("s", "t", start="earliest") as reader:
            assert [read.event for read in reader] == [b"before", b"behind"]
    assert set(asked.values()) == {0}

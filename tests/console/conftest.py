"""A console of a small deployment in memory: functions, controller and one segment store, all in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from linked_objects import LinkedObjects
from real_cluster import RealCluster, WorkingQueue, connected_to, serve_functions

from functions import wiring
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.cli import session
from headrace.client import (
    EventWriter,
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ScalingPolicy,
    TableConfiguration,
)
from headrace.client.ranges import range_reader
from headrace.client.reading import linked_history
from headrace.console import live_views, store_reach
from headrace.console.server import ConsoleServer
from headrace.controller.operations.registry import request_processor

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 600.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait as long as the machine needs. A test of a page that waits no longer sets a limit."""
    for limit in ("REACH_TIMEOUT_S", "STORE_TIMEOUT_S", "ANSWER_TIMEOUT_S"):
        monkeypatch.setattr(store_reach, limit, HANG_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """The deployment; it works until the last test of the module."""
    with pytest.MonkeyPatch.context() as patch:
        made = RealCluster()
        serve_functions(made, patch)
        queue = WorkingQueue()
        queue.start(request_processor(made.metadata, made.segment_stores, made.clock, lambda: queue))
        patch.setattr(wiring, "table_queue", lambda: queue)
        for name in ("commit_queue", "abort_queue"):  # no test ends a transaction
            patch.setattr(wiring, name, MemoryRequestQueue)
        patch.setattr(session, "open_client", lambda url, auth, retry_s, network: connected_to(made))
        yield made
        queue.stop()
        made.close()
        wiring.forget_services()


@pytest.fixture(scope="module")
def client(cluster: RealCluster) -> Iterator[Headrace]:
    """A client of the deployment. `shop/orders` was split, merged and truncated, and `shop/slow` lags behind it."""
    with connected_to(cluster) as opened:
        admin = opened.admin
        admin.create_scope("shop")
        admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2), tags=("<i>tag</i>",))
        for name in ("lost", "new", "slow"):
            admin.reader_groups.create("shop", name, ReaderGroupConfiguration((GroupStream("shop", "orders"),)))
        with opened.writer("shop", "orders") as writer:
            write_orders(writer, 0, 200)
            read_one_batch(opened, "lost")
            middle = admin.stream_cut("shop", "orders")
            admin.scale_stream("shop", "orders", seal=[0], ranges=[(0.0, 0.25), (0.25, 0.5)])
            write_orders(writer, 200, 400)
            admin.scale_stream("shop", "orders", seal=[(1 << 32) + 3, 1], ranges=[(0.25, 1.0)])
            write_orders(writer, 400, 500)
            writer.write(b"<script>alert(1)</script>\x1b[31m", "hostile").result()
            writer.write(b"\x00\xff" * 40, "binary").result()
            writer.write(b"x" * (3 << 20), "huge").result()
        admin.truncate_stream("shop", "orders", middle)
        read_one_batch(opened, "slow")
        admin.transactions.create("shop", "orders", lease_ms=60_000, label="job-7/42")
        admin.tables.create("shop", "prices", TableConfiguration(2, 8, 0))
        with opened.key_value_table("shop", "prices") as table:
            for number in range(60):
                table.put(b"key%05d" % number, b"<u>%d</u>" % number)
        yield opened


def read_one_batch(client: Headrace, name: str) -> None:
    with client.reader_group("shop", name) as group, group.reader("reader-1") as reader:
        reader.read_batch(timeout_s=10)


def write_orders(writer: EventWriter, first: int, last: int) -> None:
    for number in range(first, last):
        writer.write(json.dumps({"order": number}).encode(), f"customer-{number % 50}")
    writer.flush()


@pytest.fixture(scope="module")
def console(client: Headrace) -> Iterator[ConsoleServer]:
    """The console, which listens."""
    server = ConsoleServer("http://controller")
    server.start()
    yield server
    server.stop()
    assert server.failure is None


@pytest.fixture(scope="module")
def changing(client: Headrace) -> Iterator[ConsoleServer]:
    """A console that was started with `--allow-changes`."""
    server = ConsoleServer("http://controller", allows_changes=True)
    server.start()
    yield server
    server.stop()
    assert server.failure is None


@pytest.fixture(scope="module")
def stored(client: Headrace, cluster: RealCluster) -> Headrace:
    """Everything that was written so far is in S3."""
    cluster.stop_store()
    cluster.start_store()
    return client


@pytest.fixture
def far_console(stored: Headrace, cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleServer]:
    """A console outside the VPC, until `cluster.far_reach_stores`. It tries a store again after half a second."""
    monkeypatch.setattr(linked_history, "ObjectReads", LinkedObjects)
    monkeypatch.setattr(range_reader, "ObjectReads", LinkedObjects)
    monkeypatch.setattr(linked_history, "LISTINGS_AGAIN_S", 0.05)
    monkeypatch.setattr(linked_history, "LISTINGS_PER_S", 1000.0)
    monkeypatch.setattr(store_reach, "LOST_S", 0.5)
    monkeypatch.setattr(store_reach, "REACHED_S", 0.5)
    monkeypatch.setattr(live_views, "BEHIND_AGE_S", 0.0)
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(cluster, far=True))
    cluster.far_reach_stores = False
    server = ConsoleServer("http://controller")
    server.start()
    yield server
    server.stop()
    assert server.failure is None


@pytest.fixture
def browser(console: ConsoleServer) -> Iterator[httpx.Client]:
    """A browser that came with the token."""
    with httpx.Client(base_url=f"http://127.0.0.1:{console.port}", follow_redirects=True, timeout=60) as opened:
        assert opened.get(f"/?{urlsplit(console.address).query}").status_code == 200
        yield opened

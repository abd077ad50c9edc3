"""The zone of a client: given, found once on ECS or EC2, or not known."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace.client import InvalidRequestError, client_zone, connect
from headrace.client.client_zone import ClientZone, ZoneSearch

TOKEN = b"a-token"


class Metadata:
    """Metadata endpoints on loopback: `answers` by path, and the requests that came."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.url = ""


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    monkeypatch.setattr(client_zone, "LOOK_S_MAX", 60.0)  # the thread that answers may get no processor for long
    endpoints = Metadata()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def _answer(self, method: str) -> None:
            proof = self.headers.get("X-aws-ec2-metadata-token")
            endpoints.requests.append(f"{method} {self.path}{'' if proof is None else ' ' + proof}")
            body = endpoints.answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"no such page")

        def log_message(self, *arguments: Any) -> None:
            """Tests look at the requests."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    endpoints.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield endpoints
    server.shutdown()
    thread.join()
    server.server_close()


def search(metadata: Metadata, environment: Mapping[str, str], vendor_file: Path = Path("/nowhere")) -> ZoneSearch:
    return ZoneSearch(environment, task_prefix=metadata.url, instance_url=metadata.url, vendor_file=vendor_file)


def on_ecs(metadata: Metadata) -> dict[str, str]:
    return {"ECS_CONTAINER_METADATA_URI_V4": f"{metadata.url}/v4/abc"}


def test_a_task_of_ecs_knows_its_zone(metadata: Metadata) -> None:
    task = {"AvailabilityZone": "us-east-1c", "AvailabilityZoneID": "use1-az3"}
    metadata.answers["/v4/abc/task"] = json.dumps(task).encode()
    searched = search(metadata, on_ecs(metadata))
    assert [searched.zone(), searched.zone()] == ["use1-az3"] * 2
    assert metadata.requests == ["GET /v4/abc/task"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"no json",
        b"[]",
        b'{"AvailabilityZone": "us-east-1c"}',
        b'{"AvailabilityZoneID": 3}',
        b'{"AvailabilityZoneID": "<html>"}',
        b'{"AvailabilityZoneID": "\xff"}',
    ],
)
def test_an_answer_without_a_zone_is_asked_for_once(metadata: Metadata, answer: bytes | None) -> None:
    if answer is not None:
        metadata.answers["/v4/abc/task"] = answer
    searched = search(metadata, on_ecs(metadata))
    assert [searched.zone(), searched.zone()] == ["", ""]
    assert len(metadata.requests) == 1


def test_an_address_elsewhere_is_not_asked(metadata: Metadata) -> None:
    metadata.answers["/v4/abc/task"] = b'{"AvailabilityZoneID": "use1-az3"}'
    assert ZoneSearch(on_ecs(metadata), vendor_file=Path("/nowhere")).zone() == ""
    assert metadata.requests == []


def test_an_instance_of_ec2_is_asked_with_a_token(metadata: Metadata, tmp_path: Path) -> None:
    vendor_file = tmp_path / "sys_vendor"
    vendor_file.write_text("Amazon EC2\n")
    metadata.answers["/api/token"] = TOKEN
    metadata.answers["/meta-data/placement/availability-zone-id"] = b"euc1-az2"
    assert search(metadata, {}, vendor_file).zone() == "euc1-az2"
    assert metadata.requests == ["PUT /api/token", "GET /meta-data/placement/availability-zone-id a-token"]


@pytest.mark.parametrize(
    ("vendor", "environment"),
    [("LENOVO", {}), (None, {}), ("Amazon EC2", {"AWS_EC2_METADATA_DISABLED": "true"})],
)
def test_other_machines_are_asked_nothing(
    metadata: Metadata, tmp_path: Path, vendor: str | None, environment: dict[str, str]
) -> None:
    vendor_file = tmp_path / "sys_vendor"
    if vendor is not None:
        vendor_file.write_text(vendor)
    assert search(metadata, environment, vendor_file).zone() == ""
    assert metadata.requests == []


def test_a_closed_port_is_no_error(metadata: Metadata) -> None:
    environment = {"ECS_CONTAINER_METADATA_URI_V4": "http://127.0.0.1:1/v4"}
    assert ZoneSearch(environment, task_prefix="http://127.0.0.1:1/").zone() == ""


class SlowSearch(ZoneSearch):
    """Finds a zone when all threads that may look have had the time for it; counts how often it looks."""

    looks = 0

    def _look(self) -> str:
        self.looks += 1
        time.sleep(0.05)
        return "use1-az1"


def test_many_segments_look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    search = SlowSearch({})
    monkeypatch.setattr(client_zone, "_found", search)
    zone = ClientZone(environment={})

    async def ask() -> list[bool]:
        return await asyncio.gather(*(zone.differs_from("use1-az2") for _ in range(100)))

    assert asyncio.run(ask()) == [True] * 100
    assert search.looks == 1


def test_a_known_zone_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    search = SlowSearch({})
    monkeypatch.setattr(client_zone, "_found", search)
    assert search.known is None
    assert search.zone() == search.known == "use1-az1"
    monkeypatch.setattr(asyncio, "to_thread", None)
    assert asyncio.run(ClientZone(environment={}).differs_from("use1-az2"))


def test_a_fork_during_a_search_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_zone, "WAIT_S_MAX", 0.01)
    search = SlowSearch({})
    search._looking.acquire()
    assert search.zone() == "use1-az1"


class Found:
    """A search that was successful; counts how often it is asked."""

    known = None

    def __init__(self) -> None:
        self.asked = 0

    def zone(self) -> str:
        self.asked += 1
        return "use1-az1"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    search = Found()
    monkeypatch.setattr(client_zone, "_found", search)
    return search


@pytest.mark.parametrize(
    ("given", "variable", "store_zone", "differs", "asked"),
    [
        ("use1-az2", None, "use1-az1", True, 0),
        ("use1-az2", "use1-az1", "use1-az1", True, 0),
        ("use1-az1", None, "use1-az1", False, 0),
        (None, "use1-az3", "use1-az1", True, 0),
        (None, "", "use1-az2", False, 0),
        ("", "use1-az3", "use1-az2", False, 0),
        (None, None, "use1-az2", True, 1),
        (None, None, "use1-az1", False, 1),
        (None, None, "local", False, 0),
        (None, None, "", False, 0),
        ("use1-az1", None, "local", True, 0),
    ],
)
def test_zones_differ_only_if_both_are_known(
    found: Found, given: str | None, variable: str | None, store_zone: str, *, differs: bool, asked: int
) -> None:
    zone = ClientZone(given, environment={} if variable is None else {"HEADRACE_ZONE": variable})
    assert asyncio.run(zone.differs_from(store_zone)) is differs
    assert found.asked == asked


def test_clients_outside_look_for_no_zone(found: Found) -> None:
    assert not asyncio.run(ClientZone(environment={}, is_searched=False).differs_from("use1-az2"))
    assert found.asked == 0


@pytest.mark.parametrize("zone", ["use1 az1", "USE1-AZ1", "x" * 64, "-a", "use1-az1\n"])
def test_what_is_no_zone_id_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not the id of a zone"):
        connect("http://127.0.0.1:1", zone=zone)

"""Segments, stream cuts and history through the handlers."""

from __future__ import annotations

import pytest
from functions_in_memory import Call, FunctionWorld

from functions import wiring
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.codec.certificates import TrustBundle
from headrace.metadata.cluster_records import claim_body, claim_sort, write_lease
from headrace.metadata.trust import write_trust
from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_sort
from headrace.model.cluster import StoreLease
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.external_access import ExternalAddress
from headrace.ports.chunk_storage import ChunkLink
from headrace.ports.metadata_store import Create, Key
from headrace.ports.segment_stores import SegmentScaleRate
from headrace.topology import CONTAINER_COUNT

NEW_LOW, NEW_HIGH = (1 << 32) + 2, (1 << 32) + 3


@pytest.fixture
def scaled_stream(call: Call, world: FunctionWorld, active_stream: str) -> str:
    """s/t after segment 0, of 10 bytes, was split in two; segment 1 holds 20 bytes."""
    world.segment_stores.extend("s/t/0.#epoch.0", 10)
    world.segment_stores.extend("s/t/1.#epoch.0", 20)
    request = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}
    assert call("POST", f"{active_stream}/scale", request).status == 202
    world.work()
    return active_stream


def test_segments_at_each_point(call: Call, scaled_stream: str):
    head = call("GET", f"{scaled_stream}/segments", at="head").body
    assert head == {
        "segments": [
            {"segmentId": 0, "name": "s/t/0.#epoch.0", "low": 0.0, "high": 0.5, "startOffset": 0},
            {"segmentId": 1, "name": "s/t/1.#epoch.0", "low": 0.5, "high": 1.0, "startOffset": 0},
        ],
        "epoch": 0,
        "sealed": False,
    }
    tail = call("GET", f"{scaled_stream}/segments").body
    assert [segment["segmentId"] for segment in tail["segments"]] == [NEW_LOW, NEW_HIGH, 1]
    assert tail == call("GET", f"{scaled_stream}/segments", at="tail").body
    assert tail == call("GET", f"{scaled_stream}/segments", epoch="1").body
    first = call("GET", f"{scaled_stream}/segments", at="0").body
    assert [(segment["segmentId"], segment["startOffset"]) for segment in first["segments"]] == [(0, -1), (1, -1)]


def test_neighbours(call: Call, scaled_stream: str):
    following = call("GET", f"{scaled_stream}/segments/0/successors").body
    assert following == {
        "segments": [
            {
                "segmentId": NEW_LOW,
                "name": "s/t/2.#epoch.1",
                "low": 0.0,
                "high": 0.25,
                "predecessors": [0],
            },
            {
                "segmentId": NEW_HIGH,
                "name": "s/t/3.#epoch.1",
                "low": 0.25,
                "high": 0.5,
                "predecessors": [0],
            },
        ],
        "sealed": False,
        "truncatedLength": None,
    }
    before = call("GET", f"{scaled_stream}/segments/{NEW_LOW}/predecessors").body
    assert before == {"segments": [{"segmentId": 0, "name": "s/t/0.#epoch.0", "low": 0.0, "high": 0.5}]}
    assert call("GET", f"{scaled_stream}/segments/1/successors").body == {
        "segments": [],
        "sealed": False,
        "truncatedLength": None,
    }
    assert call("GET", f"{scaled_stream}/segments/77/successors").status == 404


def test_stream_cuts_and_what_lies_between(call: Call, scaled_stream: str):
    head = call("GET", f"{scaled_stream}/stream-cut", at="head").body
    tail = call("GET", f"{scaled_stream}/stream-cut").body
    assert head["cut"] == {"0": 0, "1": 0}
    assert tail["cut"] == {"1": 20, str(NEW_LOW): 0, str(NEW_HIGH): 0}
    assert tail["text"] != head["text"]
    between = call("POST", f"{scaled_stream}/segments/between", {"from": head["cut"], "to": tail["cut"]}).body
    assert (between["from"], between["to"]) == (head["cut"], tail["cut"])
    ranges = {segment["segmentId"]: (segment["startOffset"], segment["endOffset"]) for segment in between["segments"]}
    assert ranges == {0: (0, 10), 1: (0, 20), NEW_LOW: (0, 0), NEW_HIGH: (0, 0)}
    assert between["segments"][0]["successors"] == [NEW_LOW, NEW_HIGH]
    assert call("POST", f"{scaled_stream}/segments/between", {"from": None, "to": None}).body == between


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment with an external domain."""
    monkeypatch.setenv("HEADRACE_EXTERNAL_DOMAIN", "streams.example.com")


def claim_all(world: FunctionWorld) -> None:
    claim = ContainerClaim("store-0", "10.0.0.1", 1234, "z", tls_name="store-0.headrace.internal")
    keys = [Key(CLUSTER_PARTITION, claim_sort(each)) for each in range(CONTAINER_COUNT)]
    world.store.write(*(Create(key, claim_body(claim)) for key in keys))


@pytest.mark.usefixtures("outside")
def test_a_client_outside_gets_the_external_address(call: Call, world: FunctionWorld, active_stream: str):
    claim_all(world)
    early = call("GET", f"{active_stream}/segments/0/endpoint", network="external")
    assert (early.status, early.body["error"]["retry"]) == (503, "later")
    address = ExternalAddress("store-0.streams.example.com", 12346)
    lease = StoreLease("store-0", "10.0.0.1", 1234, "z", 100, "disk", "", 60, external=address)
    world.store.write(write_lease(lease, None))
    body = call("GET", f"{active_stream}/segments/0/endpoint", network="external").body
    assert (body["host"], body["port"], body["tlsName"]) == (address.name, 12346, address.name)
    within = call("GET", f"{active_stream}/segments/0/endpoint", network="vpc").body
    assert within == call("GET", f"{active_stream}/segments/0/endpoint").body
    assert (within["host"], within["port"], within["tlsName"]) == ("10.0.0.1", 1234, "store-0.headrace.internal")


@pytest.mark.usefixtures("outside")
def test_the_address_of_a_store_without_a_lease_is_unknown(call: Call, world: FunctionWorld, active_stream: str):
    claim_all(world)
    response = call("GET", f"{active_stream}/segments/0/endpoint", network="external")
    assert (response.status, response.code) == (503, "unavailable")


def test_without_external_addresses_the_network_is_refused(call: Call, world: FunctionWorld, active_stream: str):
    claim_all(world)
    refused = call("GET", f"{active_stream}/segments/0/endpoint", network="external")
    assert (refused.status, refused.body["error"]["code"]) == (400, "no_external_network")
    unknown = call("GET", f"{active_stream}/segments/0/endpoint", network="moon")
    assert unknown.status == 400


def test_the_endpoint_of_a_segment(call: Call, world: FunctionWorld, active_stream: str):
    unclaimed = call("GET", f"{active_stream}/segments/0/endpoint")
    assert (unclaimed.status, unclaimed.body["error"]["retry"]) == (503, "later")
    for container in range(CONTAINER_COUNT):
        claim = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1")
        world.store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim_body(claim)))
    body = call("GET", f"{active_stream}/segments/0/endpoint").body
    assert body == {"host": "10.0.0.1", "port": 12345, "zone": "use1-az1", "container": 4, "epoch": 0, "tlsName": ""}


def test_the_authorities_of_the_deployment(call: Call, world: FunctionWorld):
    assert call("GET", "/v1/trust").body == {"certificates": []}
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    world.store.write(write_trust(TrustBundle((pem,)), None))
    assert call("GET", "/v1/trust").body == {"certificates": [pem]}


class FakeLinks:
    """Signs nothing."""

    def link(self, object_name: str, position: int, length: int) -> ChunkLink:
        headers = {"Range": f"bytes={position}-{position + length - 1}"}
        return ChunkLink(f"https://bucket/{object_name}", headers, 1000)


@pytest.fixture
def with_history(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> MemoryMetadataStore:
    monkeypatch.setattr(wiring, "chunk_links", FakeLinks)
    name = "s/t/0.#epoch.0"
    world.segment_stores.create_segment(name, SegmentScaleRate())
    for run in (ChunkRun(0, 10, "o-1", 5), ChunkRun(10, 10, "o-2", 0)):
        world.store.write(Create(Key(chunk_partition(name), chunk_sort(run.offset)), chunk_body(run)))
    return world.store


def test_chunks_are_clipped_to_the_range(call: Call, with_history: MemoryMetadataStore):
    answer = call("GET", "/v1/scopes/s/streams/t/segments/0/chunks", **{"from": "4", "to": "12"}).body
    assert answer == {
        "chunks": [
            {
                "offset": 4,
                "length": 6,
                "url": "https://bucket/o-1",
                "headers": {"Range": "bytes=9-14"},
                "expiresAt": 1000,
            },
            {
                "offset": 10,
                "length": 2,
                "url": "https://bucket/o-2",
                "headers": {"Range": "bytes=0-1"},
                "expiresAt": 1000,
            },
        ],
        "storedUntil": 12,
        "next": None,
    }


def test_chunks_by_page(call: Call, with_history: MemoryMetadataStore):
    answer = call("GET", "/v1/scopes/s/streams/t/segments/0/chunks", limit="1").body
    assert (len(answer["chunks"]), answer["storedUntil"], answer["next"]) == (1, 10, 10)

"""Plans of readers through the handlers."""

from __future__ import annotations

from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld

from functions import wiring
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.metadata.cluster_records import claim_body, claim_sort, write_lease
from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_sort
from headrace.model.cluster import StoreLease
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.external_access import ExternalAddress
from headrace.ports.metadata_store import Create, Key
from headrace.topology import CONTAINER_COUNT

NEW_LOW, NEW_HIGH = (1 << 32) + 2, (1 << 32) + 3


@pytest.fixture
def scaled_stream(call: Call, world: FunctionWorld, active_stream: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """s/t after segment 0, of 10 bytes, was split in two; segment 1 holds 20 bytes. Tier 2 has all of segment 0."""
    links = MemoryChunkLinks(MemoryChunkStorage(), 60, ManualClock())
    monkeypatch.setattr(wiring, "chunk_links", lambda: links)
    world.segment_stores.extend("s/t/0.#epoch.0", 10)
    world.segment_stores.extend("s/t/1.#epoch.0", 5)
    world.segment_stores.extend("s/t/1.#epoch.0", 15)
    request = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.25}, {"low": 0.25, "high": 0.5}]}
    assert call("POST", f"{active_stream}/scale", request).status == 202
    world.work()
    key = Key(chunk_partition("s/t/0.#epoch.0"), chunk_sort(0))
    world.store.write(Create(key, chunk_body(ChunkRun(0, 10, "o-1", 5))))
    return active_stream


def test_a_next_cut(call: Call, scaled_stream: str) -> None:
    everything = call("POST", f"{scaled_stream}/next-cut", {})
    assert everything.status == 200
    tail = call("GET", f"{scaled_stream}/stream-cut").body["cut"]
    between = call("POST", f"{scaled_stream}/segments/between", {}).body
    assert everything.body == between | {"reachedEnd": True, "leftBytes": 0, "lost": [], "lostBytes": 0}
    part = call("POST", f"{scaled_stream}/next-cut", {"bytes": 6, "to": tail}).body
    assert part["to"] == {"1": 5, str(NEW_LOW): 0, str(NEW_HIGH): 0}
    assert not part["reachedEnd"]
    strict = call("POST", f"{scaled_stream}/next-cut", {"from": part["from"], "strictKeyOrder": True}).body
    assert strict["to"] == {"0": 10, "1": 20}


def test_a_next_cut_after_a_truncation(call: Call, world: FunctionWorld, scaled_stream: str) -> None:
    head = {str(NEW_LOW): 0, str(NEW_HIGH): 0, "1": 5}
    assert call("POST", f"{scaled_stream}/truncate", {"cut": head}).status == 202
    world.work()
    start = {"from": {"0": 4, "1": 0}}
    failed = call("POST", f"{scaled_stream}/next-cut", start)
    assert (failed.status, failed.code) == (410, "truncated")
    lost = [{"segmentId": 0, "fromOffset": 4, "bytes": 6}, {"segmentId": 1, "fromOffset": 0, "bytes": 5}]
    details = failed.body["error"]["details"]
    assert (details["head"], details["lost"], details["lostBytes"]) == (head, lost, 11)
    assert details["headText"] == call("GET", f"{scaled_stream}/stream-cut", at="head").body["text"]
    skipped = call("POST", f"{scaled_stream}/next-cut", start | {"onTruncation": "skip"}).body
    assert (skipped["from"], skipped["lost"], skipped["lostBytes"]) == (head, lost, 11)


def test_range_plans(call: Call, scaled_stream: str) -> None:
    ranges = [{"segmentId": 0, "start": 4, "end": 10}, {"segmentId": 1, "start": 0, "end": 20, "pieceBytes": 11}]
    found = call("POST", f"{scaled_stream}/range-plans", {"ranges": ranges}).body["ranges"]
    (whole,) = found[0]["pieces"]
    assert (whole["start"], whole["end"], whole["storedUntil"]) == (4, 10, 10)
    assert [(chunk["offset"], chunk["length"], chunk["headers"]) for chunk in whole["chunks"]] == [
        (4, 6, {"Range": "bytes=9-14"})
    ]
    assert found[1] == {
        "segmentId": 1,
        "pieces": [{"start": 0, "end": 20, "chunks": [], "storedUntil": 0}],
        "endpoint": None,
    }
    bare = call("POST", f"{scaled_stream}/range-plans", {"ranges": ranges, "links": False}).body["ranges"]
    assert [piece["storedUntil"] for plan in bare for piece in plan["pieces"]] == [None, None]


def test_plans_have_the_addresses_of_the_readers_network(
    call: Call, world: FunctionWorld, scaled_stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = ContainerClaim("store-0", "10.0.0.1", 1234, "z", tls_name="store-0.headrace.internal")
    keys = [Key(CLUSTER_PARTITION, claim_sort(each)) for each in range(CONTAINER_COUNT)]
    world.store.write(*(Create(key, claim_body(claim)) for key in keys))
    ranges = {"ranges": [{"segmentId": 1, "start": 0, "end": 20}]}
    (within,) = call("POST", f"{scaled_stream}/range-plans", ranges).body["ranges"]
    assert within["endpoint"]["host"] == "10.0.0.1"
    refused = call("POST", f"{scaled_stream}/range-plans", ranges, network="external")
    assert (refused.status, refused.code) == (400, "no_external_network")
    monkeypatch.setenv("HEADRACE_EXTERNAL_DOMAIN", "streams.example.com")
    (early,) = call("POST", f"{scaled_stream}/range-plans", ranges, network="external").body["ranges"]
    assert early["endpoint"] is None
    address = ExternalAddress("store-0.streams.example.com", 12346)
    lease = StoreLease("store-0", "10.0.0.1", 1234, "z", 100, "disk", "", 60, external=address)
    world.store.write(write_lease(lease, None))
    (outside,) = call("POST", f"{scaled_stream}/range-plans", ranges, network="external").body["ranges"]
    assert (outside["endpoint"]["host"], outside["endpoint"]["port"]) == (address.name, address.port)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("next-cut", {"bytes": 0}, 400),
        ("next-cut", {"from": {"x": 1}}, 400),
        ("next-cut", {"from": {"0": 0}}, 400),
        ("next-cut", {"onTruncation": "guess"}, 400),
        ("range-plans", {}, 400),
        ("range-plans", {"ranges": []}, 400),
        ("range-plans", {"ranges": [{"segmentId": 0, "start": 5, "end": 5}]}, 400),
        ("range-plans", {"ranges": [{"segmentId": 0, "start": 0, "end": 5, "pieceBytes": 0}]}, 400),
        ("range-plans", {"ranges": [{"segmentId": 7, "start": 0, "end": 5}]}, 404),
        ("range-plans", {"ranges": [{"segmentId": 0, "start": 0, "end": 5}] * 2}, 400),
    ],
)
def test_plans_that_are_refused(call: Call, scaled_stream: str, path: str, body: dict[str, Any], status: int) -> None:
    assert call("POST", f"{scaled_stream}/{path}", body).status == status


def test_only_a_stream_has_plans(call: Call, scaled_stream: str) -> None:
    nothing = scaled_stream.replace("/t", "/nothing")
    assert call("POST", f"{nothing}/next-cut", {}).status == 404
    ranges = [{"segmentId": 0, "start": 0, "end": 5}]
    assert call("POST", f"{nothing}/range-plans", {"ranges": ranges}).status == 404

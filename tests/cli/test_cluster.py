"""`headrace cluster`: the stores and the containers, as tables and as JSON."""

from __future__ import annotations

from api_in_memory import ApiInMemory
from command_line import ReadJson, Show

from headrace.topology import CONTAINER_COUNT


def test_a_cluster_without_stores(ok: Show, as_json: ReadJson):
    assert ok("cluster", "stores") == "none\n"
    assert as_json("cluster", "stores") == {"mapVersion": None, "containerCount": CONTAINER_COUNT, "stores": []}
    document = as_json("cluster", "containers")
    assert [container["container"] for container in document["containers"]] == list(range(CONTAINER_COUNT))
    assert len(ok("cluster", "containers").splitlines()) == CONTAINER_COUNT + 1


def test_containers_that_are_claimed_have_an_address(api: ApiInMemory, ok: Show, as_json: ReadJson):
    api.claim_containers("store.test", 4711)
    container = as_json("cluster", "containers")["containers"][0]
    assert set(container) == {"container", "store", "state", "claimedBy", "host", "port", "zone", "epoch"}
    assert (container["claimedBy"], container["host"], container["port"], container["zone"]) == (
        "store-0",
        "store.test",
        4711,
        "local",
    )
    assert "store.test:4711" in ok("cluster", "containers")

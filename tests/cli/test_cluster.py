"""`headrace cluster`: the stores and the containers, as tables and as JSON."""

from __future__ import annotations

from api_in_memory import ApiInMemory
from command_line import ReadJson, Show

from headrace.topology import CONTAINER_COUNT


def test_a_cluster_without_stores(ok: Show, as_json: ReadJson):
    assert ok("cluster", "stores") == "none\n"
    assert as_json("cluster", "stores") == {"mapVersion": None, "containerCount": CONTAINER_COUNT, "stores": []}
    found = as_json("cluster", "containers")
    assert [one["container"] for one in found["containers"]] == list(range(CONTAINER_COUNT))
    assert len(ok("cluster", "containers").splitlines()) == CONTAINER_COUNT + 1


def test_containers_that_are_claimed_have_an_address(api: ApiInMemory, ok: Show, as_json: ReadJson):
    api.claim_containers("store.test", 4711)
    one = as_json("cluster", "containers")["containers"][0]
    assert set(one) == {"container", "store", "state", "claimedBy", "host", "port", "zone", "epoch"}
    assert (one["claimedBy"], one["host"], one["port"], one["zone"]) == ("store-0", "store.test", 4711, "local")
    assert "store.test:4711" in ok("cluster", "containers")

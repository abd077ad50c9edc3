"""`headrace cluster`: the stores and the containers, as tables and as JSON."""

from __future__ import annotations

from typing import Any

from headrace.topology import CONTAINER_COUNT


def test_a_cluster_without_stores(ok: Any, as_json: Any):
    assert ok("cluster", "stores").startswith("STORE  STATE  ADDRESS")
    assert as_json("cluster", "stores") == {"mapVersion": None, "containerCount": CONTAINER_COUNT, "stores": []}
    found = as_json("cluster", "containers")
    assert [one["container"] for one in found["containers"]] == list(range(CONTAINER_COUNT))
    assert len(ok("cluster", "containers").splitlines()) == CONTAINER_COUNT + 1


def test_containers_that_are_claimed_have_an_address(api: Any, ok: Any, as_json: Any):
    api.claim_containers("store.test", 4711)
    one = as_json("cluster", "containers")["containers"][0]
    assert set(one) == {"container", "store", "state", "claimedBy", "host", "port", "zone", "epoch"}
    assert (one["claimedBy"], one["host"], one["port"], one["zone"]) == ("store-0", "store.test", 4711, "local")
    assert "store.test:4711" in ok("cluster", "containers")


def test_a_command_line_that_makes_no_sense(run: Any):
    assert run("cluster").code == 2
    assert run("cluster", "stores", "extra").code == 2

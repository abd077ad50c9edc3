"""The upgrade of a deployment over HTTP: which releases run, what waits, and the end of the time for a rollback."""

from __future__ import annotations

from typing import Any

import pytest
from functions_in_memory import AuditLines, Call, FunctionWorld

from functions import wiring
from headrace.metadata.cluster_records import write_lease
from headrace.metadata.fixed_settings import (
    FixedSetting,
    check_fixed_setting,
    finalized_body,
    fixed_setting_body,
    fixed_setting_key,
)
from headrace.model.cluster import StoreLease, StoreState
from headrace.model.formats import FIRST_RELEASE, FROZEN_STREAMS, RELEASE
from headrace.ports.metadata_store import Create
from headrace.topology import CONTAINER_COUNT

KEY = fixed_setting_key(FixedSetting.CONTAINERS)
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}
PATH = "/v1/cluster/upgrade"


def store_of(release: str, state: StoreState = StoreState.SERVING) -> StoreLease:
    return StoreLease("store-0", "127.0.0.1", 9, "a", 100, "volume", "", 0, state=state, release=release)


@pytest.fixture
def upgraded(world: FunctionWorld) -> FunctionWorld:
    """A deployment that release 0.2 has begun."""
    world.store.write(Create(KEY, fixed_setting_body(CONTAINER_COUNT)))
    return world


def test_a_new_deployment_is_finalized(call: Call, world: FunctionWorld):
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, CONTAINER_COUNT)
    world.store.write(write_lease(store_of(RELEASE), None))
    assert call("GET", PATH).body == {
        "release": RELEASE,
        "finalized": RELEASE,
        "stores": [{"storeId": "store-0", "release": RELEASE}],
        "waiting": [],
    }


def test_an_upgrade_waits_until_stores_are_replaced(call: Call, upgraded: FunctionWorld):
    upgraded.store.write(write_lease(store_of(""), None))
    status = call("GET", PATH).body
    assert (status["finalized"], status["stores"]) == (FIRST_RELEASE, [{"storeId": "store-0", "release": None}])
    assert FROZEN_STREAMS in status["waiting"]
    before = upgraded.contents()
    refused = call("POST", PATH)
    assert (refused.status, refused.body["error"]["code"]) == (412, "older_stores_run")
    assert "store-0" in refused.body["error"]["message"]
    assert upgraded.contents() == before


def test_an_upgrade_is_finalized_once(call: Call, upgraded: FunctionWorld, audit_lines: AuditLines):
    upgraded.store.write(write_lease(store_of("", StoreState.LEFT), None))
    for _ in range(2):
        done = call("POST", PATH)
        assert (done.status, done.body["finalized"], done.body["waiting"]) == (200, RELEASE, [])
    record = upgraded.store.get(KEY)
    assert record is not None
    assert (record.version, record.body) == (1, finalized_body(CONTAINER_COUNT, RELEASE))
    assert [line["action"] for line in audit_lines()] == ["cluster.finalize-upgrade"] * 2


def test_only_older_stores_keep_an_upgrade_from_its_end(call: Call, upgraded: FunctionWorld):
    """And a repetition does nothing, whatever stores run."""
    upgraded.store.write(write_lease(store_of("99.0"), None))
    assert call("POST", PATH).status == 200
    upgraded.store.write(write_lease(store_of(""), 0))
    assert call("POST", PATH).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/scopes", {"scopeName": "flight_delays"}),
        ("POST", "/v1/scopes/s/streams", {"streamName": "flight_delays", "scalingPolicy": FIXED}),
        (
            "POST",
            "/v1/scopes/s/key-value-tables",
            {"tableName": "flight_delays", "partitionCount": 1, "primaryKeyLength": 4},
        ),
        ("PUT", "/v1/scopes/s/streams/t/state", {"streamState": "FROZEN"}),
        (
            "POST",
            "/v1/scopes/s/streams/t/commit-sets",
            {"writer": "w", "epoch": 1, "transactions": {"t": ["0" * 32]}, "note": "position"},
        ),
    ],
)
def test_gated_requests_wait_for_the_end(
    call: Call, upgraded: FunctionWorld, method: str, path: str, body: dict[str, Any]
):
    refused = call(method, path, body)
    assert (refused.status, refused.body["error"]["code"]) == (412, "upgrade_not_finalized")
    assert "headrace upgrade finalize" in refused.body["error"]["message"]
    call("POST", PATH)
    wiring.forget_services()
    assert "upgrade_not_finalized" not in str(call(method, path, body).body)


def test_a_controller_of_a_former_release_refuses(call: Call, world: FunctionWorld):
    world.store.write(Create(KEY, finalized_body(CONTAINER_COUNT, "99.0")))
    refused = call("GET", "/v1/scopes")
    assert (refused.status, refused.body["error"]["code"]) == (503, "release_too_old")
    assert "deploy release 99.0 or a later one" in refused.body["error"]["message"]

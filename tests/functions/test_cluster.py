"""The cluster over HTTP and in the client; the tick and the event that find lost stores."""

from __future__ import annotations

from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import store_tasks
from functions.processors.tick_work import TICK_WORK
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.client.administration.operators_admin import AsyncClusterAdmin
from headrace.metadata.cluster_records import ClusterRecords, claim_body, claim_sort, write_lease
from headrace.model.cluster import StoreLease, registered
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import Create, Key

TASK = "arn:aws:ecs:us-east-1:123456789012:task/headrace/0123"
LEASE_OVER_MS = 12_001


@pytest.fixture
def clock(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Two stores have just registered."""
    made = ManualClock()
    monkeypatch.setattr(wiring, "clock", lambda: made)
    for name, task in (("store-0", ""), ("store-1", TASK)):
        lease = StoreLease(name, "10.0.0.1", 9, "use1-az1", 100, f"disk-{name}", task, 60_000)
        world.store.write(write_lease(registered(lease, None, made.now_ms()), None))
    return made


def tick() -> None:
    assert TICK_WORK["failed-stores"](0) is False


def claim(world: FunctionWorld, container: int, store_id: str) -> None:
    body = claim_body(ContainerClaim(store_id, "10.0.0.1", 9, "use1-az1"))
    world.store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), body))


def stopped(task: Any) -> dict[str, Any]:
    """The parts of an ECS event that are looked at, among others."""
    return {
        "source": "aws.ecs",
        "detail-type": "ECS Task State Change",
        "detail": {
            "clusterArn": "arn:aws:ecs:us-east-1:123456789012:cluster/headrace",
            "group": "service:headrace-store-1",
            "desiredStatus": "STOPPED",
            "lastStatus": "STOPPED",
            "stopCode": "TaskFailedToStart",
            "stoppedReason": "Task failed",
            "taskArn": task,
        },
    }


def test_the_tick_has_one_bucket():
    (declared,) = (each for each in topology.TICKS if each.kind == "failed-stores")
    assert (declared.every_s, declared.buckets) == (10, 1)


def test_a_cluster_that_is_not_there_yet(call: Call):
    assert call("GET", "/v1/cluster").body == {"mapVersion": None, "containerCount": 8, "stores": []}
    containers = call("GET", "/v1/cluster/containers").body
    assert containers["mapVersion"] is None
    assert containers["containers"][0] == {
        "container": 0,
        "store": None,
        "state": "FREE",
        "claimedBy": None,
        "host": None,
        "port": None,
        "zone": None,
        "epoch": None,
    }


def test_stores_and_containers_through_a_loss(call: Call, world: FunctionWorld, clock: ManualClock):
    tick()
    claim(world, 0, "store-0")
    claim(world, 1, "store-1")
    claim(world, 2, "store-1")
    clock.advance(LEASE_OVER_MS)
    records = ClusterRecords(world.store)
    alive = records.lease("store-0")
    assert alive is not None
    world.store.write(write_lease(registered(alive.lease, alive.lease, clock.now_ms()), alive.version))
    tick()
    answer = call("GET", "/v1/cluster").body
    assert (answer["mapVersion"], answer["containerCount"]) == (1, 8)
    first, second = answer["stores"]
    assert first == {
        "storeId": "store-0",
        "state": "SERVING",
        "host": "10.0.0.1",
        "port": 9,
        "zone": "use1-az1",
        "capacity": 100,
        "incarnation": 2,
        "task": None,
        "leaseUntil": clock.now_ms() + 10_000,
        "endedTime": None,
        "takeOverTime": None,
        "starts": [clock.now_ms() - LEASE_OVER_MS, clock.now_ms()],
        "unflushedSince": None,
        "containers": [0, 2, 3, 4, 5, 6, 7],
    } | {"containers": first["containers"]}
    assert sorted(first["containers"] + second["containers"]) == list(range(8))
    assert 1 in second["containers"]
    assert (second["state"], second["task"], second["endedTime"]) == ("LOST", TASK, clock.now_ms())
    assert second["takeOverTime"] == clock.now_ms() + 60_000
    states = {each["container"]: each for each in call("GET", "/v1/cluster/containers").body["containers"]}
    assert [states[each]["state"] for each in (0, 1, 2, 3)] == ["SERVED", "WAITING", "WAITING", "FREE"]
    assert states[1] | {"store": "store-1"} == {
        "container": 1,
        "store": "store-1",
        "state": "WAITING",
        "claimedBy": "store-1",
        "host": "10.0.0.1",
        "port": 9,
        "zone": "use1-az1",
        "epoch": 0,
    }


def test_an_event_of_a_stopped_task_moves_its_containers_at_once(
    call: Call, world: FunctionWorld, clock: ManualClock, context: FunctionContext
):
    tick()
    claim(world, 1, "store-1")
    assert store_tasks.handler(stopped("arn:of-another"), context) == {"ended": []}
    assert store_tasks.handler(stopped(TASK), context) == {"ended": ["store-1"]}
    assert store_tasks.handler(stopped(TASK), context) == {"ended": []}
    first, second = call("GET", "/v1/cluster").body["stores"]
    assert (first["containers"], second["containers"], second["state"]) == (list(range(8)), [], "LOST")
    states = call("GET", "/v1/cluster/containers").body["containers"]
    assert (states[1]["store"], states[1]["state"], states[1]["claimedBy"]) == ("store-0", "MOVING", "store-1")


@pytest.mark.parametrize(
    "event", [{}, {"detail": None}, stopped(7), stopped(TASK) | {"detail": {"taskArn": TASK, "lastStatus": "RUNNING"}}]
)
def test_what_is_no_event_of_a_stopped_task_is_refused(event: dict[str, Any], context: FunctionContext):
    with pytest.raises(InvalidRequestError):
        store_tasks.handler(event, context)


@pytest.mark.anyio
async def test_the_client_reads_what_the_api_says(call: Call, world: FunctionWorld, clock: ManualClock):
    class Api:
        async def request(self, method: str, path: str) -> Any:
            return call(method, path).body

    admin = AsyncClusterAdmin(Api())  # type: ignore[arg-type]
    assert (await admin.get()).map_version is None
    tick()
    claim(world, 3, "store-1")
    cluster, containers = await admin.get(), await admin.containers()
    assert [(each.store_id, each.state, each.task, len(each.containers)) for each in cluster.stores] == [
        ("store-0", "SERVING", None, 4),
        ("store-1", "SERVING", TASK, 4),
    ]
    assert (cluster.map_version, cluster.container_count, containers.map_version) == (0, 8, 0)
    third = containers.containers[3]
    assert (third.container, third.store, third.state, third.epoch) == (3, "store-1", "SERVED", 0)
    assert containers.containers[4].claimed_by is None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/cluster/logs/x/accept-loss", {"lost": ["0a" * 16], "version": 1}),
        ("POST", "/v1/cluster/logs/10000/accept-loss", {"lost": ["0a" * 16], "version": 1}),
        ("POST", "/v1/cluster/logs/1/accept-loss", {"lost": [], "version": 1}),
        ("POST", "/v1/cluster/logs/1/accept-loss", {"lost": ["0A" * 16], "version": 1}),
        ("POST", "/v1/cluster/logs/1/accept-loss", {"lost": ["0a" * 16] * 4, "version": 1}),
        ("POST", "/v1/cluster/logs/1/accept-loss", {"lost": ["0a" * 16], "version": 0}),
        ("PUT", "/v1/cluster/copies", {"copies": 2}),
        ("PUT", "/v1/cluster/copies", {"copies": "3"}),
        ("POST", "/v1/cluster/raise-epochs", {"above": -1}),
        ("POST", "/v1/cluster/raise-epochs", {"above": 2**53}),
        ("POST", "/v1/cluster/raise-epochs", {}),
    ],
)
def test_an_invalid_decision_about_logs_is_refused(call: Call, method: str, path: str, body: dict[str, Any]):
    assert call(method, path, body).status == 400


def test_a_log_that_is_not_there_is_not_found(call: Call):
    answer = call("POST", "/v1/cluster/logs/1/accept-loss", {"lost": ["0a" * 16], "version": 1})
    assert answer.status == 404
    assert answer.body["error"]["code"] == "no_log"
    logs = call("GET", "/v1/cluster/logs").body["logs"]
    assert [(each["container"], each["state"]) for each in logs] == [(number, None) for number in range(8)]

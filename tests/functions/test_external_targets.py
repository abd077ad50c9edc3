"""The functions around the network: targets of the load balancer outside, and the lists of AWS's addresses."""

from __future__ import annotations

from typing import Any

import pytest
from lambda_context import FunctionContext
from moto import mock_aws

from functions import wiring
from functions.deployment import external_targets, prefix_lists
from headrace.adapters.memory.external_targets import MemoryExternalTargets
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import write_lease
from headrace.model.cluster import StoreLease
from headrace.model.external_access import ExternalAddress

CONTEXT = FunctionContext()
ADDRESS = ExternalAddress("store-0.streams.example.com", 20_000)
LEASE = StoreLease("a", "10.0.0.1", 12345, "z", 100, "disk", "task-1", 0, external=ADDRESS)


class World:
    """A deployment whose load balancer has one port; `pauses` are the times that the function has waited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.clock = MemoryMetadataStore(), ManualClock()
        self.balancer = MemoryExternalTargets([20_000])
        self.pauses = 0
        self.counts: dict[str, int] = {}
        monkeypatch.setattr(wiring, "metadata_store", lambda: self.store)
        monkeypatch.setattr(wiring, "clock", lambda: self.clock)
        monkeypatch.setattr(external_targets, "external_targets", lambda: self.balancer)
        monkeypatch.setattr(external_targets, "count", self.counts.__setitem__)
        monkeypatch.setattr(external_targets, "pause", self.pause)

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.clock.advance(int(seconds * 1000))
        if self.pauses == 2:
            self.store.write(write_lease(LEASE, None))

    def call(self, **detail: str) -> dict[str, int]:
        event: dict[str, Any] = {"detail": detail} if detail else {"source": "aws.events"}
        return external_targets.handler(event, CONTEXT)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_task_that_starts_is_awaited(world: World):
    assert world.call(taskArn="task-1", lastStatus="RUNNING") == {"added": 1, "removed": 0}
    assert world.pauses == 2
    assert len(world.balancer.targets(20_000)) == 1


def test_a_task_without_a_lease_is_not_awaited_for_ever(world: World):
    assert world.call(taskArn="task-2", lastStatus="RUNNING") == {"added": 1, "removed": 0}
    assert world.clock.now_ms() >= external_targets.PATIENCE_MS
    assert world.counts == {}


def test_the_call_of_the_minute_counts_unreached_stores(world: World):
    assert world.call() == {"added": 0, "removed": 0}
    assert world.counts == {}
    world.store.write(write_lease(LEASE, None))
    assert world.call() == {"added": 1, "removed": 0}
    world.balancer.unhealthy |= set(world.balancer.targets(20_000))
    world.call()
    assert world.counts == {"ExternalStoresUnreachable": 1}
    assert world.pauses == 0


def test_a_task_that_stops_is_not_awaited(world: World):
    assert world.call(taskArn="task-1", lastStatus="STOPPED") == {"added": 0, "removed": 0}
    assert world.pauses == 0


def request(kind: str) -> dict[str, Any]:
    return {
        "RequestType": kind,
        "ResponseURL": "https://cloudformation.example/signed",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Lists",
        "ResourceProperties": {"ServiceToken": "arn"},
    }


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(prefix_lists, "send_report", lambda asked, *rest: kept.append(asked.report(*rest)))
    wiring.forget_services()
    return kept


@mock_aws
def test_the_lists_of_the_region_are_reported(reports: list[dict[str, Any]]):
    assert prefix_lists.handler(request("Create"), CONTEXT) == {"outcome": "passed"}
    (report,) = reports
    assert (report["Status"], set(report["Data"])) == ("SUCCESS", {"S3", "DynamoDb"})
    assert all(found.startswith("pl-") for found in report["Data"].values())


@mock_aws
def test_a_deletion_asks_for_nothing(reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_lists, "find_lists", lambda: pytest.fail("no list is needed"))
    assert prefix_lists.handler(request("Delete"), CONTEXT) == {"outcome": "passed"}
    assert "Data" not in reports[0]


def test_a_missing_list_fails_the_deployment(reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_lists, "find_lists", lambda: {"S3": "pl-1"})
    assert prefix_lists.handler(request("Create"), CONTEXT) == {"outcome": "failed"}
    assert (reports[0]["Status"], reports[0]["Reason"]) == ("FAILED", "the Region has no prefix list of DynamoDb")

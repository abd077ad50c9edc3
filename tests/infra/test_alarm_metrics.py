"""No alarm watches a metric that the functions do not emit: the functions are run, and what they print is compared."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cdk_assembly import Assembly
from lambda_context import FunctionContext

from functions import wiring
from functions.deployment import certificates, custom_resources, external_targets, replication_gate
from functions.observability import NAMESPACE
from functions.processors import audit_log, store_tasks, ticks
from headrace import topology
from headrace.adapters.memory.external_targets import MemoryExternalTargets
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.certificates.upkeep import UpkeepReport
from headrace.metadata.cluster_records import ClusterRecords, claim_body, claim_sort, write_lease
from headrace.metadata.container_log import NO_VERSION, write_container_log
from headrace.model.cluster import ReplicationStatus, StoreLease, registered
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.ports.metadata_store import Create, Key

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

TAKE_OVER_AFTER_MS = 60_000
LEASE_OVER_MS = 12_001
CONTEXT = FunctionContext()
AUTHORITY_ENDS_SOON = ("AuthorityEndsSoon", frozenset({("service", "certificates")}))
EXTERNAL_STORES_UNREACHABLE = ("ExternalStoresUnreachable", frozenset({("service", "external-targets")}))
AUDIT_LINES_REFUSED = ("AuditLinesRefused", frozenset({("service", "audit-log")}))

Emitted = set[tuple[str, frozenset[tuple[str, str]]]]
"""(name of the metric, its dimensions)."""


class Cluster:
    """Two segment stores; one of them keeps its lease."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore()
        self.clock = ManualClock()
        for index in range(2):
            lease = StoreLease(f"store-{index}", "h", 9, "z", 100, f"disk-{index}", f"task-{index}", TAKE_OVER_AFTER_MS)
            self.store.write(write_lease(registered(lease, None, self.clock.now_ms()), None))
        claim = claim_body(ContainerClaim("store-1", "h", 9, "z"))
        self.store.write(Create(Key(CLUSTER_PARTITION, claim_sort(1)), claim))

    def advance(self, ms: int) -> None:
        """Time in which the first store renews its lease and the second does not."""
        self.clock.advance(ms)
        kept = ClusterRecords(self.store).lease("store-0")
        assert kept is not None
        self.store.write(write_lease(registered(kept.lease, kept.lease, self.clock.now_ms()), kept.version))

    def tick(self) -> None:
        message = {
            "messageId": "m",
            "receiptHandle": "r",
            "body": json.dumps({"kind": "failed-stores", "bucket": 0}),
            "attributes": {"ApproximateReceiveCount": "1"},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:us-east-1:1:{topology.TICKS_QUEUE.name}",
        }
        assert ticks.handler({"Records": [message]}, CONTEXT) == {"batchItemFailures": []}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "false")
    monkeypatch.setattr(wiring, "metadata_store", lambda: made.store)
    monkeypatch.setattr(wiring, "clock", lambda: made.clock)
    wiring.forget_services()
    yield made
    wiring.forget_services()


@pytest.fixture
def deployed_as(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives the process the name under which a function of the template counts."""

    def become(name: str) -> None:
        variables = assembly.named("AWS::Lambda::Function", "FunctionName")[f"headrace-{name}"].properties[
            "Environment"
        ]
        for variable in ("POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE"):
            monkeypatch.setenv(variable, variables["Variables"][variable])

    return become


@pytest.fixture
def emitted(cluster: Cluster, deployed_as: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> Emitted:
    """What the functions emit when a store is lost for good, found by the tick and told by an event."""
    deployed_as("ticks")
    cluster.tick()
    cluster.advance(LEASE_OVER_MS)
    cluster.tick()
    for _ in range(TAKE_OVER_AFTER_MS // LEASE_OVER_MS + 1):
        cluster.advance(LEASE_OVER_MS)
        cluster.tick()
    deployed_as("store-tasks")
    event = {"detail": {"taskArn": "task-0", "lastStatus": "STOPPED"}}
    cluster.store.write(
        Create(Key(CLUSTER_PARTITION, claim_sort(0)), claim_body(ContainerClaim("store-0", "h", 9, "z")))
    )
    lost = StoreLease("store-2", "h", 9, "z", 100, "disk-2", "task-2", TAKE_OVER_AFTER_MS)
    cluster.store.write(write_lease(registered(lost, None, cluster.clock.now_ms()), None))
    assert store_tasks.handler(event, CONTEXT) == {"ended": ["store-0"]}
    return _emitted(capsys.readouterr().out)


def _emitted(output: str) -> Emitted:
    lines = [json.loads(line) for line in output.splitlines() if '"_aws"' in line]
    return {
        (metric["Name"], frozenset((name, line[name]) for name in names))
        for line in lines
        for directive in line["_aws"]["CloudWatchMetrics"]
        if directive["Namespace"] == NAMESPACE
        for names in directive["Dimensions"]
        for metric in directive["Metrics"]
    }


@pytest.fixture
def emitted_of_logs(
    cluster: Cluster,
    deployed_as: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Emitted:
    """What the tick emits about logs that lack copies, and a gate that waits for them."""
    stored_lease = ClusterRecords(cluster.store).lease("store-1")
    assert stored_lease is not None
    told = ReplicationStatus(isolated=True, blocked=(0,), under_replicated=1)
    cluster.store.write(write_lease(replace(stored_lease.lease, replication=told), stored_lease.version))
    log = ContainerLog(3, LogState.OPEN, (ReplicaId(b"1" * 16), ReplicaId(b"2" * 16)), (LedgerStart(1, 0),))
    cluster.store.write(write_container_log(0, log, NO_VERSION))
    deployed_as("ticks")
    cluster.tick()
    deployed_as("replication-gate")
    gate = {
        **dict.fromkeys(("StackId", "RequestId", "LogicalResourceId"), "x"),
        "RequestType": "Update",
        "ResponseURL": "https://x",
        "ResourceProperties": {"Zones": "3"},
    }
    monkeypatch.setattr(custom_resources, "pause", lambda _: cluster.clock.advance(replication_gate.PATIENCE_S * 1000))
    monkeypatch.setattr(custom_resources, "send_report", lambda *_: None)
    assert replication_gate.handler(gate, FunctionContext(lambda: 10**9)) == {"outcome": "failed"}
    return _emitted(capsys.readouterr().out)


def _watched(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of an alarm, whether it has one or computes with several."""
    if "Metrics" in alarm:
        return [metric["MetricStat"]["Metric"] for metric in alarm["Metrics"] if "MetricStat" in metric]
    return [alarm]


def _counted(assembly: Assembly) -> Emitted:
    """The metrics of functions that alarms watch; log lines have no dimension, and stores and canary another one."""
    return {
        (metric["MetricName"], frozenset((each["Name"], each["Value"]) for each in metric["Dimensions"]))
        for alarm in assembly.named("AWS::CloudWatch::Alarm", "AlarmName").values()
        for metric in _watched(alarm.properties)
        if metric["Namespace"] == NAMESPACE and [each["Name"] for each in metric.get("Dimensions", [])] == ["service"]
    }


def test_alarms_watch_what_the_functions_emit(smallest_assembly: Assembly, emitted: Emitted):
    watched = _counted(smallest_assembly)
    counted = {"StoresLost", "ContainersGivenUp", "AuditLinesRefused", "AuthorityEndsSoon"}
    assert {name for name, _ in watched} == counted
    assert watched - {AUDIT_LINES_REFUSED, AUTHORITY_ENDS_SOON} <= emitted


def test_alarms_of_logs_watch_what_the_functions_emit(assembly: Assembly, emitted_of_logs: Emitted):
    watched = {each for each in _counted(assembly) if each[0] not in ("StoresLost", "AuditLinesRefused")}
    assert {name for name, _ in watched} == {
        *("LogsBlocked", "LogsUnderReplicated", "LogsWithOneCopy", "StoresIsolated", "GatesWaiting")
    }
    assert watched <= emitted_of_logs


class _OldLines:
    """A log stream that takes no line, because all are too old."""

    def put(self, lines: list[dict[str, Any]]) -> int:
        return len(lines)


def test_audit_lines_that_are_refused_are_counted(
    cluster: Cluster,
    deployed_as: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(wiring, "audit_log_stream", _OldLines)
    deployed_as("audit-log")
    delivery = {"messageType": "DATA_MESSAGE", "logEvents": [{"id": "1", "timestamp": 5, "message": "{}"}]}
    data = base64.b64encode(gzip.compress(json.dumps(delivery).encode())).decode()
    audit_log.handler({"awslogs": {"data": data}}, CONTEXT)
    assert AUDIT_LINES_REFUSED in _emitted(capsys.readouterr().out)


class _OldAuthority:
    """A run that finds nothing to do but an authority that ends soon."""

    def run(self, labels: Sequence[str]) -> UpkeepReport:
        return UpkeepReport({}, {}, authority_ends_soon=True)


def test_an_authority_that_ends_soon_is_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(certificates, "certificate_upkeep", _OldAuthority)
    monkeypatch.setenv("HEADRACE_CERTIFICATE_LABELS", "store-0")
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", topology.CERTIFICATES.name)
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)
    assert certificates.handler({}, CONTEXT) == {"outcome": "done"}
    assert AUTHORITY_ENDS_SOON in _emitted(capsys.readouterr().out)


def test_stores_that_are_not_reached_from_outside_are_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(external_targets, "external_targets", lambda: MemoryExternalTargets([]))
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", topology.EXTERNAL_TARGETS.name)
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)
    assert external_targets.handler({}, CONTEXT) == {"added": 0, "removed": 0}
    assert EXTERNAL_STORES_UNREACHABLE in _emitted(capsys.readouterr().out)


def test_every_function_that_gives_containers_up_rings(smallest_assembly: Assembly, emitted: Emitted):
    alarm = smallest_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")["headrace-containers-given-up"].properties
    services = {dict(dimensions)["service"] for name, dimensions in emitted if name == "ContainersGivenUp"}
    assert services == {each["Dimensions"][0]["Value"] for each in _watched(alarm)}
    assert services == {"ticks", "store-tasks"}

"""The function behind the gates of a deployment: it waits for the copies of all logs and reports to CloudFormation."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from lambda_context import FunctionContext

from functions import wiring
from functions.deployment import replication_gate
from functions.deployment.replication_gate import DEADLINE_FIELD, PATIENCE_MS, GateRequest, handler
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import NO_VERSION, write_container_log
from headrace.metadata.store_lease import write_lease
from headrace.model.cluster import ReplicationStatus, StoreLease, leaving, registered, renewed
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState
from headrace.model.ensembles import ReplicaId
from headrace.model.errors import InvalidRequestError, UnavailableError
from headrace.ports.metadata_store import Key, Record

CONTAINERS = 2
REPLICAS = [ReplicaId(bytes([number]) * 16) for number in range(3)]
EVENT = {
    "RequestType": "Update",
    "ResponseURL": "https://cloudformation-custom-resource-response.example/signed?x=1",
    "StackId": "arn:aws:cloudformation:us-east-1:1:stack/HeadraceSegmentStores/uuid",
    "RequestId": "request-1",
    "LogicalResourceId": "Gate0",
    "PhysicalResourceId": "gate",
    "ResourceProperties": {"ServiceToken": "arn", "TaskDefinition": "arn:2", "Zones": "3"},
}


class MetadataThatMayBeAway(MemoryMetadataStore):
    away = False

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        if self.away:
            raise UnavailableError("the table is away")
        return super().get_many(keys)


@dataclass
class World:
    """Three stores in three zones, and the calls of the function to the outside."""

    store: MetadataThatMayBeAway = field(default_factory=MetadataThatMayBeAway)
    clock: ManualClock = field(default_factory=ManualClock)
    reports: list[dict[str, str]] = field(default_factory=list)
    started: list[dict[str, Any]] = field(default_factory=list)
    at_pause: list[Callable[[], None]] = field(default_factory=list)
    pauses: int = 0

    def __post_init__(self) -> None:
        for number, replica in enumerate(REPLICAS):
            lease = StoreLease(f"store-{number}", "h", 9, f"az{number}", 100, "v", "t", 0, replica_id=replica.hex())
            self.store.write(write_lease(registered(lease, None, self.clock.now_ms()), None))

    def log(self, container: int, *members: int) -> None:
        log = ContainerLog(3, LogState.OPEN, tuple(REPLICAS[each] for each in members), (LedgerStart(1, 0),))
        found = self.store.get(write_container_log(container, log, NO_VERSION).key)
        self.store.write(write_container_log(container, log, NO_VERSION if found is None else found.version))

    def lease(self, number: int, change: Callable[[StoreLease], StoreLease]) -> None:
        found = ClusterRecords(self.store).lease(f"store-{number}")
        assert found is not None
        self.store.write(write_lease(change(found.lease), found.version))

    def pause(self, seconds: float) -> None:
        """Stores renew their leases meanwhile."""
        self.pauses += 1
        self.clock.advance(int(seconds * 1000))
        for number in range(len(REPLICAS)):
            self.lease(number, lambda lease: renewed(lease, self.clock.now_ms()))
        if self.at_pause:
            self.at_pause.pop(0)()

    @property
    def status(self) -> str:
        (report,) = self.reports
        return report["Status"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setenv("HEADRACE_CONTAINER_COUNT", str(CONTAINERS))
    monkeypatch.setattr(wiring, "metadata_store", lambda: made.store)
    monkeypatch.setattr(wiring, "clock", lambda: made.clock)
    monkeypatch.setattr(replication_gate, "pause", made.pause)
    monkeypatch.setattr(replication_gate, "start_again", made.started.append)

    def send_report(request: GateRequest, problems: list[str]) -> None:
        made.reports.append(request.report(problems))

    monkeypatch.setattr(replication_gate, "send_report", send_report)
    wiring.forget_services()
    yield made
    wiring.forget_services()


LONG = FunctionContext(lambda: 10**9)


def test_a_deployment_goes_on_when_all_logs_have_copies(world: World):
    world.log(0, 0, 1, 2)
    assert handler(EVENT, LONG) == {"outcome": "passed"}
    assert world.reports == [
        {
            "Status": "SUCCESS",
            "Reason": "every log has its copies",
            "PhysicalResourceId": "gate",
            "StackId": EVENT["StackId"],
            "RequestId": "request-1",
            "LogicalResourceId": "Gate0",
        }
    ]
    assert world.pauses == 0


def test_the_gate_waits_for_the_last_copy(world: World):
    world.log(0, 0, 1, 2)
    world.log(1, 0, 1)
    world.at_pause = [lambda: None, lambda: world.log(1, 0, 1, 2)]
    assert handler(EVENT, LONG) == {"outcome": "passed"}
    assert world.pauses == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda lease: leaving(lease, 0),
        lambda lease: replace(lease, lease_until_ms=0),
        lambda lease: replace(lease, replica_id="ff" * 16),
        lambda lease: replace(lease, replication=ReplicationStatus(blocked=(1,))),
    ],
    ids=["leaving", "expired", "replaced", "blocked"],
)
def test_a_store_that_is_not_whole_does_not_count(world: World, change):
    world.log(0, 0, 1, 2)
    world.clock.advance(1)
    world.lease(2, change)
    assert handler({**EVENT, DEADLINE_FIELD: world.clock.now_ms()}, LONG) == {"outcome": "failed"}
    assert world.status == "FAILED"


def test_a_table_that_does_not_answer_is_asked_again(world: World):
    world.store.away = True
    world.at_pause = [lambda: setattr(world.store, "away", False)]
    assert handler(EVENT, LONG) == {"outcome": "passed"}
    assert world.status == "SUCCESS"


def test_the_gate_gives_up_before_cloudformation_does(world: World):
    world.log(1, 0, 1)
    begun_ms = world.clock.now_ms()
    assert handler(EVENT, LONG) == {"outcome": "failed"}
    (report,) = world.reports
    assert report["Status"] == "FAILED"
    assert report["Reason"] == "the log of container 1 has copies in 2 of 3 zones"
    assert PATIENCE_MS <= world.clock.now_ms() - begun_ms < 3_600_000


def test_a_call_that_ends_is_continued_by_another(world: World):
    world.log(1, 0, 1)
    begun_ms = world.clock.now_ms()
    ending = FunctionContext(lambda: 70_000 - 15_000 * world.pauses)
    assert handler(EVENT, ending) == {"outcome": "continues"}
    assert world.reports == []
    (event,) = world.started
    assert event == {**EVENT, DEADLINE_FIELD: begun_ms + PATIENCE_MS}
    world.log(1, 0, 1, 2)
    assert handler(json.loads(json.dumps(event)), LONG) == {"outcome": "passed"}


@pytest.mark.parametrize("kind", ["Create", "Delete"])
def test_a_gate_that_is_made_or_removed_does_not_wait(world: World, kind):
    """The first update to replicated stores, and a first deployment, find logs with fewer copies."""
    world.log(1, 0)
    event = {name: value for name, value in EVENT.items() if name != "PhysicalResourceId"}
    assert handler({**event, "RequestType": kind}, LONG) == {"outcome": "passed"}
    (report,) = world.reports
    assert (report["Status"], report["PhysicalResourceId"]) == ("SUCCESS", "Gate0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"RequestType": "Other"},
        {"ResponseURL": "file:///etc/passwd"},
        {"ResponseURL": None},
        {"StackId": 1},
        {"ResourceProperties": {}},
        {"ResourceProperties": {"Zones": "0"}},
        {"ResourceProperties": {"Zones": "-3"}},
        {"ResourceProperties": None},
        {DEADLINE_FIELD: "soon"},
    ],
)
def test_an_event_that_is_not_of_a_gate_is_refused(world: World, wrong):
    with pytest.raises(InvalidRequestError, match="replication gate"):
        handler({**EVENT, **wrong}, LONG)
    assert world.reports == []


def test_the_next_call_is_started_without_waiting(monkeypatch: pytest.MonkeyPatch):
    calls: list[dict[str, Any]] = []

    class Session:
        def create_client(self, service: str) -> Any:
            assert service == "lambda"
            return self

        def invoke(self, **arguments: Any) -> None:
            if self.refused:
                raise ClientError({"Error": {"Code": "TooManyRequestsException"}}, "Invoke")
            calls.append(arguments)

        refused = False

    monkeypatch.setattr(wiring, "aws_session", Session)
    replication_gate.start_again({"RequestId": "request-1"})
    assert calls == [
        {
            "FunctionName": "headrace-replication-gate",
            "InvocationType": "Event",
            "Payload": b'{"RequestId": "request-1"}',
        }
    ]
    Session.refused = True
    with pytest.raises(UnavailableError, match="headrace-replication-gate was not started"):
        replication_gate.start_again({"RequestId": "request-1"})


def test_a_report_is_put_as_the_address_was_signed(monkeypatch: pytest.MonkeyPatch):
    sent: list[Any] = []

    class Answer:
        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            sent.append("closed")

    def opened(message, timeout: float):
        sent.append((message.get_method(), message.full_url, message.get_header("Content-type"), message.data, timeout))
        return Answer()

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    request = GateRequest.from_event(EVENT)
    replication_gate.send_report(request, ["x" * 5_000])
    (method, url, content_type, body, timeout), closed = sent
    assert (method, url, content_type, closed) == ("PUT", EVENT["ResponseURL"], "", "closed")
    assert timeout == replication_gate.REPORT_TIMEOUT_S
    assert len(body) < 4_096, "what CloudFormation takes"
    assert json.loads(body)["Status"] == "FAILED"

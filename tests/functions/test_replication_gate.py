"""The function behind the gates of a deployment: it waits for the copies of all logs and reports to CloudFormation."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from lambda_context import FunctionContext

from functions import wiring
from functions.deployment import custom_resources
from functions.deployment.custom_resources import REPORT_TIMEOUT_S, ResourceRequest, send_report
from functions.deployment.replication_gate import PATIENCE_S, handler
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords, write_lease
from headrace.metadata.container_log import NO_VERSION, write_container_log
from headrace.model.cluster import ReplicationStatus, StoreLease, leaving, left, registered, renewed
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
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
    at_pause: list[Callable[[], None]] = field(default_factory=list)
    pauses: int = 0

    def __post_init__(self) -> None:
        for number, replica in enumerate(REPLICAS):
            lease = StoreLease(f"store-{number}", "h", 9, f"az{number}", 100, "v", "t", 0, replica_id=replica.hex())
            self.store.write(write_lease(registered(lease, None, self.clock.now_ms()), None))

    def log(self, container: int, *members: int) -> None:
        log = ContainerLog(3, LogState.OPEN, tuple(REPLICAS[each] for each in members), (LedgerStart(1, 0),))
        record = self.store.get(write_container_log(container, log, NO_VERSION).key)
        self.store.write(write_container_log(container, log, NO_VERSION if record is None else record.version))

    def lease(self, number: int, change: Callable[[StoreLease], StoreLease]) -> None:
        stored_lease = ClusterRecords(self.store).lease(f"store-{number}")
        assert stored_lease is not None
        self.store.write(write_lease(change(stored_lease.lease), stored_lease.version))

    def pause(self, seconds: float) -> None:
        """Stores renew their leases meanwhile."""
        self.pauses += 1
        assert self.pauses < 1_000, "the gate waits without end"
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
    monkeypatch.setattr(custom_resources, "pause", made.pause)

    def keep_report(request: ResourceRequest, problems: list[str], done: str) -> None:
        made.reports.append(request.report(problems, done))

    monkeypatch.setattr(custom_resources, "send_report", keep_report)
    wiring.forget_services()
    yield made
    wiring.forget_services()


LONG = FunctionContext(lambda: 10**9)


def _event(**properties: str) -> dict[str, Any]:
    known: Any = EVENT["ResourceProperties"]
    return {**EVENT, "ResourceProperties": {**known, **properties}}


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
    assert handler(EVENT, FunctionContext(lambda: 0)) == {"outcome": "failed"}
    assert world.status == "FAILED"


def test_a_table_that_does_not_answer_is_asked_again(world: World):
    world.store.away = True
    world.at_pause = [lambda: setattr(world.store, "away", False)]
    assert handler(EVENT, LONG) == {"outcome": "passed"}
    assert world.status == "SUCCESS"


@pytest.mark.parametrize("event", [EVENT, _event(WaitSeconds=str(PATIENCE_S), Last="true")], ids=["older", "last"])
def test_the_gate_gives_up_before_cloudformation_does(world: World, event):
    world.log(1, 0, 1)
    begun_ms = world.clock.now_ms()
    assert handler(event, LONG) == {"outcome": "failed"}
    (report,) = world.reports
    assert report["Status"] == "FAILED"
    assert report["Reason"] == "the log of container 1 has copies in 2 of 3 zones"
    assert PATIENCE_S * 1000 <= world.clock.now_ms() - begun_ms < 900_000


def test_another_resource_continues_the_wait(world: World):
    """Each has a short time-out, so that CloudFormation does not wait long for a function that cannot start."""
    world.log(1, 0, 1)
    begun_ms = world.clock.now_ms()
    assert handler(_event(WaitSeconds="60", Last="false"), LONG) == {"outcome": "continues"}
    assert 60_000 <= world.clock.now_ms() - begun_ms < 120_000
    assert world.status == "SUCCESS"
    assert world.reports[0]["Reason"] == "the log of container 1 has copies in 2 of 3 zones"


def test_the_gate_reports_before_its_call_ends(world: World):
    world.log(1, 0, 1)
    ending = FunctionContext(lambda: 70_000 - 15_000 * world.pauses)
    assert handler(EVENT, ending) == {"outcome": "failed"}
    assert world.pauses == 1
    assert world.status == "FAILED"


@pytest.mark.parametrize("kind", ["Create", "Delete"])
def test_a_gate_that_is_made_or_removed_does_not_wait(world: World, kind):
    """The first update to replicated stores, and a first deployment, find logs with fewer copies."""
    world.log(1, 0)
    event = {name: value for name, value in EVENT.items() if name != "PhysicalResourceId"}
    assert handler({**event, "RequestType": kind}, LONG) == {"outcome": "passed"}
    (report,) = world.reports
    assert (report["Status"], report["PhysicalResourceId"]) == ("SUCCESS", "Gate0")


@pytest.mark.parametrize("kind", ["Create", "Delete"])
def test_a_gate_that_does_not_wait_needs_no_numbers(world: World, kind: str):
    """Without a report CloudFormation would wait for the time-out, and then fail the deletion or the rollback."""
    assert handler({**EVENT, "RequestType": kind, "ResourceProperties": {"Zones": "none"}}, LONG)["outcome"] == "passed"
    assert world.status == "SUCCESS"


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
        {"ResourceProperties": {"Zones": "3", "WaitSeconds": "soon"}},
        {"ResourceProperties": {"Zones": "3", "WaitSeconds": "86400"}},
    ],
)
def test_an_event_that_is_not_of_a_gate_is_refused(world: World, wrong):
    with pytest.raises(InvalidRequestError, match="an event of a"):
        handler({**EVENT, **wrong}, LONG)
    assert world.reports == []


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
    request = ResourceRequest.from_event(EVENT)
    send_report(request, ["x" * 5_000], "")
    (method, url, content_type, body, timeout), closed = sent
    assert (method, url, content_type, closed) == ("PUT", EVENT["ResponseURL"], "", "closed")
    assert timeout == REPORT_TIMEOUT_S
    assert len(body) < 4_096, "what CloudFormation takes"
    assert json.loads(body)["Status"] == "FAILED"


def _step(before: str | None, after: str, kind: str = "Update") -> dict[str, Any]:
    old = {} if before is None else {"OldResourceProperties": {"ServiceToken": "arn", "Tls": before}}
    return {**EVENT, **old, "RequestType": kind, "ResourceProperties": {"ServiceToken": "arn", "Tls": after}}


@pytest.mark.parametrize("after", ["off", "permissive", "required"])
@pytest.mark.parametrize("before", [None, "off", "permissive", "required"])
def test_only_required_to_off_skips_a_step(world: World, before: str | None, after: str):
    """The former stores demand TLS of those without it, so no log of a replaced zone would get its copies again."""
    is_refused = (before, after) == ("required", "off")
    assert handler(_step(before, after), LONG) == {"outcome": "failed" if is_refused else "passed"}
    assert world.status == ("FAILED" if is_refused else "SUCCESS")
    assert ("such as store-0, and would refuse stores without it" in world.reports[0]["Reason"]) == is_refused
    assert world.pauses == 0


@pytest.mark.parametrize("has_left", [False, True])
def test_a_step_is_free_while_no_store_runs(world: World, *, has_left: bool):
    """A store that stopped has said so. Another one's lease ends."""
    if has_left:
        for number in range(len(REPLICAS)):
            world.lease(number, lambda lease: left(lease, world.clock.now_ms()))
    else:
        world.clock.advance(3_600_000)
    assert handler(_step("required", "off"), LONG) == {"outcome": "passed"}


def test_a_step_is_refused_if_the_table_does_not_tell(world: World, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object, **__: object) -> Any:
        raise UnavailableError("the table is away")

    monkeypatch.setattr(ClusterRecords, "leases", fails)
    assert handler(_step("required", "off"), LONG) == {"outcome": "failed"}
    assert "the table is away" in world.reports[0]["Reason"]


@pytest.mark.parametrize("kind", ["Create", "Delete"])
def test_a_first_step_and_a_removed_one_pass(world: World, kind: str):
    assert handler(_step("required", "off", kind), LONG) == {"outcome": "passed"}

"""The function that issues certificates, with KMS and Secrets Manager of an emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lambda_context import FunctionContext
from moto import mock_aws

from functions import wiring
from functions.aws_clients import aws_client
from functions.deployment import certificates, custom_resources
from functions.deployment.certificates import PATIENCE_MS, handler
from functions.deployment.custom_resources import ResourceRequest
from functions.environment import Environment, EnvironmentVariableError
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.certificate_names import certificate_labels, secret_name
from headrace.certificates.profile import is_issued_by, load_certificate
from headrace.codec.certificates import LeafSecret, parse_leaf_secret
from headrace.metadata.cluster_records import lease_key, store_lease_body
from headrace.metadata.trust import find_trust
from headrace.model.cluster import StoreLease, StoreState
from headrace.model.errors import InvalidRequestError, UnavailableError
from headrace.ports.metadata_store import Create

LABELS = certificate_labels(2, has_bridge=True)
LONG = FunctionContext(lambda: 10**9)


class World:
    """A deployment with one authority; `counts` are the metrics, and `reports` go to CloudFormation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.store = MemoryMetadataStore()
        self.counts: dict[str, int] = {}
        self.reports: list[dict[str, str]] = []
        self.monkeypatch = monkeypatch
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        wiring.forget_services()
        self.kms = aws_client("kms")
        self.secrets = aws_client("secretsmanager")
        self.keys: list[str] = []
        self.declare_key()
        for label in LABELS:
            self.secrets.create_secret(Name=secret_name(label), SecretString='{"unused": "random"}')
        monkeypatch.setenv("HEADRACE_CERTIFICATE_LABELS", ",".join(LABELS))
        monkeypatch.setattr(wiring, "clock", lambda: self.clock)
        monkeypatch.setattr(wiring, "metadata_store", lambda: self.store)
        monkeypatch.setattr(certificates, "count", self.count)
        monkeypatch.setattr(custom_resources, "count", self.count)
        monkeypatch.setattr(custom_resources, "pause", lambda seconds: self.clock.advance(int(seconds * 1000)))
        monkeypatch.setattr(custom_resources, "send_report", self.keep_report)

    def declare_key(self) -> None:
        made = self.kms.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")
        self.keys.append(made["KeyMetadata"]["Arn"])
        self.monkeypatch.setenv("HEADRACE_AUTHORITY_KEYS", ",".join(self.keys))
        wiring.forget_services()

    def count(self, name: str, value: int = 1, **_: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + value

    def keep_report(self, request: ResourceRequest, problems: list[str], done: str) -> None:
        self.reports.append(request.report(problems, done))

    def deploy(self, kind: str, tls: str = "permissive") -> str:
        event: dict[str, Any] = {
            "RequestType": kind,
            "ResponseURL": "https://cloudformation.example/signed",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "Issued",
            "ResourceProperties": {"ServiceToken": "arn", "Tls": tls},
        }
        return handler(event, LONG)["outcome"]

    def run(self) -> None:
        assert handler({}, LONG) == {"outcome": "done"}

    def secret(self, label: str) -> LeafSecret:
        return parse_leaf_secret(self.secrets.get_secret_value(SecretId=secret_name(label))["SecretString"])

    def is_trusted(self, label: str) -> bool:
        found, leaf = find_trust(self.store), load_certificate(self.secret(label).certificate)
        assert found is not None
        return any(is_issued_by(leaf, load_certificate(each)) for each in found.bundle.certificates)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with mock_aws():
        yield World(monkeypatch)
    monkeypatch.undo()
    wiring.forget_services()


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_a_deployment_goes_on_with_certificates(world: World, kind: str):
    assert world.deploy(kind) == "passed"
    assert world.reports[0]["Status"] == "SUCCESS"
    assert all(map(world.is_trusted, LABELS))
    assert world.counts == {"CertificatesIssued": len(LABELS)}


def _register(world: World, store_id: str, *, tls_name: str = "", state: StoreState = StoreState.SERVING) -> None:
    until_ms = world.clock.now_ms() + 30_000
    lease = StoreLease(
        store_id, "host", 1, "zone", 1, "volume", "", 30_000, state=state, lease_until_ms=until_ms, tls_name=tls_name
    )
    world.store.write(Create(lease_key(store_id), store_lease_body(lease)))


def test_tls_is_not_demanded_of_stores_without_it(world: World):
    """Those of a deployment that had tls=off: it could not form a quorum during the update."""
    _register(world, "left", state=StoreState.LEFT)
    _register(world, "ready", tls_name="store-1.headrace.internal")
    assert world.deploy("Update", "required") == "passed"
    _register(world, "plain")
    assert world.deploy("Update", "permissive") == "passed"
    world.monkeypatch.setattr(certificates, "PATIENCE_MS", 0)
    assert world.deploy("Update", "required") == "failed"
    assert "such as plain: deploy with -c tls=permissive first" in world.reports[-1]["Reason"]
    assert world.deploy("Delete", "required") == "passed"
    world.clock.advance(3_600_000)
    assert world.deploy("Create", "required") == "passed"


def test_a_daily_run_changes_nothing_that_is_not_due(world: World):
    world.run()
    secrets = [world.secret(label) for label in LABELS]
    world.clock.advance(3 * 86_400_000)
    world.run()
    assert [world.secret(label) for label in LABELS] == secrets
    world.clock.advance(2 * 86_400_000)
    world.run()
    assert not set(secrets) & {world.secret(label) for label in LABELS}
    assert world.counts == {"CertificatesIssued": 2 * len(LABELS)}


def test_a_secret_that_is_missing_stops_no_other(world: World):
    world.secrets.delete_secret(SecretId=secret_name("store-0"), ForceDeleteWithoutRecovery=True)
    with pytest.raises(UnavailableError, match="store-0"):
        handler({}, LONG)
    assert all(map(world.is_trusted, LABELS[1:]))
    assert world.counts == {"CertificatesIssued": len(LABELS) - 1, "CertificatesNotIssued": 1}


def test_a_deployment_without_certificates_fails(world: World):
    world.monkeypatch.setenv("HEADRACE_AUTHORITY_KEYS", "no-such-key")
    wiring.forget_services()
    begun_ms = world.clock.now_ms()
    assert world.deploy("Create") == "failed"
    assert world.reports[0]["Status"] == "FAILED"
    assert "no-such-key" in world.reports[0]["Reason"]
    assert PATIENCE_MS <= world.clock.now_ms() - begun_ms < topology.CERTIFICATES.timeout_s * 1000
    assert find_trust(world.store) is None


def test_a_stack_without_certificates_can_be_deleted(world: World):
    assert world.deploy("Delete") == "passed"
    assert find_trust(world.store) is None


def test_a_second_authority_is_published(world: World):
    world.run()
    world.declare_key()
    world.run()
    trust = find_trust(world.store)
    assert trust is not None
    assert len(trust.bundle.certificates) == 2


def test_the_end_of_an_authority_is_counted(world: World):
    world.run()
    world.clock.advance(3_300 * 86_400_000)
    world.run()
    assert world.counts["AuthorityEndsSoon"] == 1


def test_no_log_line_has_a_key(world: World, capsys: pytest.CaptureFixture[str]):
    world.run()
    output = capsys.readouterr()
    assert "PRIVATE" not in output.out + output.err


def test_an_invalid_request_is_refused(world: World):
    with pytest.raises(InvalidRequestError):
        handler({"RequestType": "Create"}, LONG)


@pytest.mark.parametrize("text", ["", "store-0,store-x", "store-0,../controller"])
def test_wrong_labels_are_refused(text: str):
    with pytest.raises(EnvironmentVariableError, match="HEADRACE_CERTIFICATE_LABELS"):
        _ = Environment({"HEADRACE_CERTIFICATE_LABELS": text}).certificate_labels


def test_the_declared_handler_is_this_one():
    module, _, name = topology.CERTIFICATES.handler.rpartition(".")
    assert (module, name) == (handler.__module__, "handler")

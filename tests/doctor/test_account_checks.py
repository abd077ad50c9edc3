"""The checks of the AWS account. botocore checks each question and each answer against its model of the services."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from headrace import topology
from headrace.doctor.account import BotocoreAccount
from headrace.doctor.account_checks import REQUIRED_STACKS, account_findings
from headrace.doctor.findings import ACCOUNT, CHECKS, Finding, Verdict
from headrace.model.errors import InvalidRequestError

NOW = datetime(2027, 1, 15, 12, tzinfo=UTC)
BUCKET = "headrace-chunks-111122223333-eu-west-1"
TABLE = topology.METADATA_TABLE.name

Answers = dict[tuple[str, str], Any]
"""By service and operation; a text is the code of an error."""


def _alarm(name: str, **other: Any) -> dict[str, Any]:
    usual = {"AlarmName": name, "StateValue": "OK", "ActionsEnabled": True, "AlarmActions": ["arn:topic"]}
    return usual | other


def _service(name: str) -> dict[str, Any]:
    deployments = [{"rolloutState": "COMPLETED"}]
    return {"serviceName": name, "runningCount": 1, "desiredCount": 1, "deployments": deployments}


def _healthy() -> Answers:
    stacks = [
        {"StackName": name, "StackStatus": "UPDATE_COMPLETE", "CreationTime": NOW}
        for name in (*REQUIRED_STACKS, "HeadraceSpark")
    ]
    other = {"StackName": "Payroll", "StackStatus": "UPDATE_FAILED", "CreationTime": NOW}
    recovery = {
        "PointInTimeRecoveryStatus": "ENABLED",
        "EarliestRestorableDateTime": NOW - timedelta(days=35),
        "LatestRestorableDateTime": NOW - timedelta(minutes=5),
    }
    blocked = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    names = [f"headrace-store-{number}" for number in range(3)]
    rule = {"Status": "Enabled", "Prefix": "", "NoncurrentVersionExpiration": {"NoncurrentDays": 7}}
    return {
        ("cloudformation", "describe_stacks"): {"Stacks": [*stacks, other]},
        ("cloudwatch", "describe_alarms"): {
            "MetricAlarms": [
                _alarm("headrace-stores-lost"),
                _alarm("headrace-crc-errors", StateValue="INSUFFICIENT_DATA"),
                _alarm("headrace-ack-budget-fast-5m", AlarmActions=[]),
            ],
            "CompositeAlarms": [_alarm("headrace-ack-budget-fast")],
        },
        ("ecs", "list_services"): {"serviceArns": names},
        ("ecs", "describe_services"): {"services": [_service(name) for name in names]},
        ("events", "describe_rule"): {"State": "ENABLED"},
        ("dynamodb", "describe_continuous_backups"): {
            "ContinuousBackupsDescription": {
                "ContinuousBackupsStatus": "ENABLED",
                "PointInTimeRecoveryDescription": recovery,
            }
        },
        ("dynamodb", "describe_table"): {"Table": {"TableName": TABLE, "DeletionProtectionEnabled": True}},
        ("sts", "get_caller_identity"): {"Account": "111122223333"},
        ("s3", "get_bucket_versioning"): {"Status": "Enabled"},
        ("s3", "get_bucket_lifecycle_configuration"): {"Rules": [rule]},
        ("s3", "get_public_access_block"): {"PublicAccessBlockConfiguration": dict.fromkeys(blocked, True)},
        ("secretsmanager", "describe_secret"): {
            "RotationEnabled": True,
            "RotationRules": {"AutomaticallyAfterDays": 30},
            "LastRotatedDate": NOW - timedelta(days=59),
        },
    }


class StubbedAccount(BotocoreAccount):
    """Answers from a table. It checks questions and answers as botocore does, and notes the questions."""

    def __init__(self) -> None:
        super().__init__("eu-west-1")
        self.answers: Answers = {}
        self.asked: list[tuple[str, str]] = []

    def ask(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        with self._stubbed(service, operation):
            return super().ask(service, operation, **parameters)

    def ask_all(self, service: str, operation: str, items: str, **parameters: Any) -> list[Any]:
        with self._stubbed(service, operation):
            return super().ask_all(service, operation, items, **parameters)

    def _stubbed(self, service: str, operation: str) -> Stubber:
        self.asked.append((service, operation))
        stubber = Stubber(self.client(service))
        answer = self.answers[service, operation]
        if isinstance(answer, str):
            stubber.add_client_error(operation, service_error_code=answer)
        else:
            stubber.add_response(operation, deepcopy(answer))
        return stubber


@pytest.fixture(scope="module")
def account() -> Iterator[StubbedAccount]:
    """One for all tests: to make its clients takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        _set_credentials(patch)
        yield StubbedAccount()


def _set_credentials(patch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")


def _findings(account: StubbedAccount, answers: Answers) -> dict[str, Finding]:
    account.answers = answers
    return {finding.check: finding for finding in account_findings(account, NOW)}


def test_a_healthy_account_is_well(account: StubbedAccount):
    account.answers = _healthy()
    findings = account_findings(account, NOW)
    assert {finding.check for finding in findings} == {name for name, check in CHECKS.items() if check.group == ACCOUNT}
    assert [finding for finding in findings if finding.verdict is not Verdict.WELL] == []
    assert all(operation.startswith(("describe_", "get_", "list_")) for _, operation in account.asked)


Change = Callable[[Answers], object]


def _stack(number: int, state: str) -> Change:
    return lambda answers: answers["cloudformation", "describe_stacks"]["Stacks"][number].update(StackStatus=state)


def _first_service(**changes: Any) -> Change:
    return lambda answers: answers["ecs", "describe_services"]["services"][0].update(changes)


def _recovery(**changes: Any) -> Change:
    def change(answers: Answers) -> None:
        backups = answers["dynamodb", "describe_continuous_backups"]["ContinuousBackupsDescription"]
        backups["PointInTimeRecoveryDescription"].update(changes)

    return change


def _in(service: str, operation: str, **changes: Any) -> Change:
    return lambda answers: answers[service, operation].update(changes)


FAULTS: dict[str, tuple[Change, str, Verdict, str]] = {
    "a stack is missing": (
        lambda answers: answers["cloudformation", "describe_stacks"]["Stacks"].pop(3),
        "stacks",
        Verdict.FAILURE,
        REQUIRED_STACKS[3],
    ),
    "a stack has failed": (_stack(1, "UPDATE_ROLLBACK_FAILED"), "stacks", Verdict.FAILURE, REQUIRED_STACKS[1]),
    "a stack was never complete": (_stack(1, "ROLLBACK_COMPLETE"), "stacks", Verdict.FAILURE, REQUIRED_STACKS[1]),
    "an update was rolled back": (_stack(1, "UPDATE_ROLLBACK_COMPLETE"), "stacks", Verdict.WARNING, REQUIRED_STACKS[1]),
    "a stack is being updated": (_stack(1, "UPDATE_IN_PROGRESS"), "stacks", Verdict.WARNING, REQUIRED_STACKS[1]),
    "an alarm is on": (
        lambda answers: answers["cloudwatch", "describe_alarms"]["MetricAlarms"][0].update(StateValue="ALARM"),
        "alarms",
        Verdict.FAILURE,
        "headrace-stores-lost",
    ),
    "a composite alarm is on": (
        lambda answers: answers["cloudwatch", "describe_alarms"]["CompositeAlarms"][0].update(StateValue="ALARM"),
        "alarms",
        Verdict.FAILURE,
        "on: headrace-ack-budget-fast",
    ),
    "a part of a composite alarm is on": (
        lambda answers: answers["cloudwatch", "describe_alarms"]["MetricAlarms"][2].update(StateValue="ALARM"),
        "alarms",
        Verdict.WELL,
        "3 alarms",
    ),
    "an alarm is silent": (
        lambda answers: answers["cloudwatch", "describe_alarms"]["MetricAlarms"][1].update(ActionsEnabled=False),
        "alarms",
        Verdict.WARNING,
        "headrace-crc-errors",
    ),
    "no alarm exists": (
        _in("cloudwatch", "describe_alarms", MetricAlarms=[], CompositeAlarms=[]),
        "alarms",
        Verdict.FAILURE,
        "no alarm",
    ),
    "a task does not run": (_first_service(runningCount=0), "services", Verdict.FAILURE, "headrace-store-0 0 of 1"),
    "a store was stopped": (
        _first_service(runningCount=0, desiredCount=0),
        "services",
        Verdict.WARNING,
        "headrace-store-0",
    ),
    "a deployment goes on": (
        _first_service(deployments=[{"rolloutState": "IN_PROGRESS"}]),
        "services",
        Verdict.WARNING,
        "headrace-store-0 IN_PROGRESS",
    ),
    "no service": (_in("ecs", "list_services", serviceArns=[]), "services", Verdict.FAILURE, "no service"),
    "the rule is disabled": (
        _in("events", "describe_rule", State="DISABLED"),
        "schedule",
        Verdict.FAILURE,
        "headrace-every-minute",
    ),
    "the table cannot be restored": (
        _recovery(PointInTimeRecoveryStatus="DISABLED"),
        "table-recovery",
        Verdict.FAILURE,
        "is off",
    ),
    "backups are late": (
        _recovery(LatestRestorableDateTime=NOW - timedelta(minutes=11)),
        "table-recovery",
        Verdict.FAILURE,
        "2027-01-15 11:49",
    ),
    "the table may be deleted": (
        lambda answers: answers["dynamodb", "describe_table"]["Table"].update(DeletionProtectionEnabled=False),
        "table-protection",
        Verdict.WARNING,
        TABLE,
    ),
    "the bucket keeps no versions": (
        _in("s3", "get_bucket_versioning", Status="Suspended"),
        "bucket-versions",
        Verdict.FAILURE,
        BUCKET,
    ),
    "versions stay for ever": (
        _in("s3", "get_bucket_lifecycle_configuration", Rules=[{"Status": "Enabled", "Prefix": ""}]),
        "bucket-versions",
        Verdict.FAILURE,
        BUCKET,
    ),
    "no rule of the bucket": (
        lambda answers: answers.update({("s3", "get_bucket_lifecycle_configuration"): "NoSuchLifecycleConfiguration"}),
        "bucket-versions",
        Verdict.FAILURE,
        "NoSuchLifecycleConfiguration",
    ),
    "the bucket may be public": (
        lambda answers: answers["s3", "get_public_access_block"]["PublicAccessBlockConfiguration"].update(
            BlockPublicPolicy=False
        ),
        "bucket-access",
        Verdict.FAILURE,
        "BlockPublicPolicy",
    ),
    "keys are not rotated": (
        _in("secretsmanager", "describe_secret", LastRotatedDate=NOW - timedelta(days=61)),
        "token-keys",
        Verdict.FAILURE,
        "due every 30 days",
    ),
    "rotation is off": (
        _in("secretsmanager", "describe_secret", RotationEnabled=False),
        "token-keys",
        Verdict.FAILURE,
        "off",
    ),
    "a rotation with a schedule of its own": (
        _in("secretsmanager", "describe_secret", RotationRules={"ScheduleExpression": "rate(10 days)"}),
        "token-keys",
        Verdict.SKIPPED,
        "not that of the template",
    ),
    "a deployment without tokens": (
        lambda answers: answers.update({("secretsmanager", "describe_secret"): "ResourceNotFoundException"}),
        "token-keys",
        Verdict.SKIPPED,
        "no keys",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a15_each_fault_of_the_account_is_named(fault: str, account: StubbedAccount):
    change, check, verdict, evidence = FAULTS[fault]
    answers = _healthy()
    change(answers)
    findings = _findings(account, answers)
    faulty = findings.pop(check)
    assert (faulty.verdict, evidence in faulty.evidence) == (verdict, True), faulty
    assert {finding.verdict for finding in findings.values()} == {Verdict.WELL}


def test_missing_rights_skip_checks_and_name_the_action(account: StubbedAccount):
    findings = _findings(account, dict.fromkeys(_healthy(), "AccessDeniedException"))
    for check, finding in findings.items():
        assert finding.verdict is Verdict.SKIPPED
        assert "AccessDeniedException" in finding.evidence
        assert CHECKS[check].permission in finding.evidence


def test_an_account_that_cannot_be_reached_is_skipped(monkeypatch: pytest.MonkeyPatch):
    """Without an answer there is a reason, and no trace of Python."""
    _set_credentials(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("headrace.doctor.account.ATTEMPTS_MAX", 1)
    findings = account_findings(BotocoreAccount("eu-west-1"), NOW)
    assert {finding.verdict for finding in findings} == {Verdict.SKIPPED}
    assert all("was not asked" in finding.evidence for finding in findings)


def test_an_endpoint_must_be_a_url(monkeypatch: pytest.MonkeyPatch):
    _set_credentials(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "not a URL")
    findings = account_findings(BotocoreAccount("eu-west-1"), NOW)
    assert {finding.verdict for finding in findings} == {Verdict.SKIPPED}


@pytest.mark.parametrize("region", ["", "eu-west-1"])
def test_a_configuration_of_aws_must_be_valid(region: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("AWS_REGION", region)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(InvalidRequestError, match="nowhere"):
        BotocoreAccount()
    broken = tmp_path / "config"
    broken.write_text("no file of AWS")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(broken))
    with pytest.raises(InvalidRequestError, match="config"):
        BotocoreAccount()


def test_a_region_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidRequestError, match="AWS_REGION"):
        BotocoreAccount()

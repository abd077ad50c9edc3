"""What a check finds, and the table of all checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """How a check ends. `SKIPPED`: it could not look, and its evidence says why."""

    WELL = "well"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the question that it answers, and what to do if the answer is not yes.

    `page` is the part of the documentation about it. `permission` is the action of IAM that the check needs; empty: it
    asks the controller only.
    """

    group: str
    question: str
    remedy: str
    page: str
    permission: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of a check. `evidence` is one sentence with the names and figures that were seen."""

    check: str
    verdict: Verdict
    evidence: str


CONTROL, STORES, DATA, SECURITY, ACCOUNT = "control plane", "stores", "data path", "security", "AWS account"

_RUNBOOKS: Final = "operating/runbooks.md"

CHECKS: Final[Mapping[str, Check]] = {
    "clock": Check(
        CONTROL,
        "Do this machine and the controller have the same time?",
        "set the clock of this machine: signatures of requests are refused after five minutes of difference",
        "operating/doctor.md#checks",
    ),
    "dead-letters": Check(
        CONTROL,
        "Have all requests been carried out?",
        "headrace dead-letter get LETTER shows the error; remove its cause, then replay or drop the letter",
        "using/cli.md#dead-letters",
    ),
    "ticks": Check(
        CONTROL,
        "Does the periodic work run?",
        "look whether the rule headrace-every-minute is enabled and the function headrace-ticks succeeds",
        f"{_RUNBOOKS}#headrace-ticks-stopped",
    ),
    "store-calls": Check(
        CONTROL,
        "Do the functions of the controller reach the stores?",
        "look at the security groups of functions and stores, and at event=token_refused in the logs of the stores",
        "operating/doctor.md#functions-that-do-not-reach-the-stores",
    ),
    "stores": Check(
        STORES,
        "Do all registered stores run, and last?",
        "look at the events of the store's ECS service and at its log",
        "operating/deploy.md#diagnose-a-store-that-does-not-start",
    ),
    "storage": Check(
        STORES,
        "Do the stores write their data to S3 in time?",
        "look for event=storage_retry and event=storage_refused in the log of the store: they name the reason",
        f"{_RUNBOOKS}#headrace-store-zone-flush-lag",
    ),
    "zones": Check(
        STORES,
        "Are there stores in three zones for three copies?",
        "start a store in each zone, or deploy with copies=1",
        "operating/deploy.md#copies-of-the-log",
    ),
    "containers": Check(
        STORES,
        "Is each container served by the store of the map?",
        "containers move within a minute; one that stays names the store that it waits for",
        "operating/cluster.md#assignment-of-containers",
    ),
    "spread": Check(
        STORES,
        "Do the stores have equal shares of the containers?",
        "wait for the next ticks; if it stays, look why a store gets no containers",
        "operating/cluster.md#assignment-of-containers",
    ),
    "log-recovery": Check(
        STORES,
        "Can each container read its log?",
        "start the stores that have the members again; accept a loss only if they are lost for good",
        "operating/cluster.md#blocked-containers",
    ),
    "log-copies": Check(
        STORES,
        "Does each log have all its copies?",
        "stores catch up by themselves; if it stays, look at the stores that are missing",
        f"{_RUNBOOKS}#headrace-log-under-replicated",
    ),
    "log-owners": Check(
        STORES,
        "Do the owners of the logs last?",
        "look in the log of the owners why they stop again and again",
        f"{_RUNBOOKS}#headrace-owner-changes",
    ),
    "releases": Check(
        STORES,
        "Does one release run, and is its upgrade finalized?",
        "continue the upgrade, or finalize it",
        "operating/upgrades.md#order-of-an-upgrade",
    ),
    "signatures": Check(
        SECURITY,
        "Does the controller refuse requests without a signature?",
        "deploy the API with IAM authorization, as the templates do",
        "operating/security.md#classes-of-routes",
    ),
    "tokens": Check(
        SECURITY,
        "Do the stores demand delegation tokens?",
        "deploy with tokens=required; on a laptop: headrace up --tokens",
        "operating/token-keys.md#turn-tokens-on-and-off",
    ),
    "tls": Check(
        SECURITY,
        "Do the stores have certificates?",
        "deploy with tls=permissive, then with tls=required; on a laptop: headrace up --secure",
        "operating/certificates.md#turn-tls-on",
    ),
    "connections": Check(
        DATA,
        "Can this machine connect to each store?",
        "run it in the VPC, or with --network external; check the security groups",
        "operating/security.md#refused-connections",
    ),
    "certificates": Check(
        DATA,
        "Are the certificates of the stores valid for days?",
        "look why the function headrace-certificates does not issue new ones",
        "operating/certificates.md#when-a-certificate-ends",
    ),
    "round-trip": Check(
        DATA,
        "Does an event come back from each container?",
        "look at the stores and the log of the containers that are named",
        "operating/metrics.md#monitoring",
    ),
    "stacks": Check(
        ACCOUNT,
        "Are all stacks deployed completely?",
        "look at the events of the stack, then deploy again",
        "operating/deploy.md#a-deployment-that-fails",
        "cloudformation:DescribeStacks",
    ),
    "alarms": Check(
        ACCOUNT,
        "Are all alarms off?",
        "the table of alarms says for each what it means and what to do",
        f"{_RUNBOOKS}#all-together",
        "cloudwatch:DescribeAlarms",
    ),
    "services": Check(
        ACCOUNT,
        "Do as many tasks run as are wanted?",
        "look at the events of the ECS service",
        "operating/deploy.md#diagnose-a-store-that-does-not-start",
        "ecs:ListServices and ecs:DescribeServices",
    ),
    "schedule": Check(
        ACCOUNT,
        "Is the rule of the periodic work enabled?",
        "enable the rule headrace-every-minute in EventBridge",
        f"{_RUNBOOKS}#headrace-ticks-stopped",
        "events:DescribeRule",
    ),
    "table-recovery": Check(
        ACCOUNT,
        "Can the metadata table be restored to any second?",
        "enable point-in-time recovery of the table, or deploy HeadraceMetadata again",
        "operating/deploy.md#restore-the-table-to-an-earlier-time",
        "dynamodb:DescribeContinuousBackups",
    ),
    "table-protection": Check(
        ACCOUNT,
        "Is the metadata table protected from deletion?",
        "deploy with keep_data=true",
        "operating/deploy.md#deploy",
        "dynamodb:DescribeTable",
    ),
    "bucket-versions": Check(
        ACCOUNT,
        "Do deleted chunks stay as versions, for days only?",
        "deploy HeadraceChunks again: versioning and lifecycle rules belong to it",
        "operating/deploy.md#restore-the-table-to-an-earlier-time",
        "s3:GetBucketVersioning and s3:GetLifecycleConfiguration",
    ),
    "bucket-access": Check(
        ACCOUNT,
        "Is public access to the chunks blocked?",
        "block all public access of the bucket, or deploy HeadraceChunks again",
        "operating/security.md#chunks-are-written-once",
        "s3:GetBucketPublicAccessBlock",
    ),
    "token-keys": Check(
        ACCOUNT,
        "Are the keys of delegation tokens rotated?",
        "look why the function headrace-token-keys fails",
        "operating/token-keys.md#rotation",
        "secretsmanager:DescribeSecret",
    ),
}
"""All checks by id, in the order in which their findings are shown. The ids are stable: programs read them."""

NAMES_SHOWN: Final = 5


def listed(names: Sequence[str]) -> str:
    """The first names, and how many follow."""
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def well(check: str, evidence: str) -> Finding:
    return Finding(check, Verdict.WELL, evidence)


def warning(check: str, evidence: str) -> Finding:
    return Finding(check, Verdict.WARNING, evidence)


def failure(check: str, evidence: str) -> Finding:
    return Finding(check, Verdict.FAILURE, evidence)


def skipped(check: str, evidence: str) -> Finding:
    return Finding(check, Verdict.SKIPPED, evidence)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order of the table."""
    order = {check: number for number, check in enumerate(CHECKS)}
    return sorted(findings, key=lambda finding: order[finding.check])


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict on all: FAILURE before WARNING; what was skipped does not count."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in (Verdict.FAILURE, Verdict.WARNING) if verdict in verdicts), Verdict.WELL)

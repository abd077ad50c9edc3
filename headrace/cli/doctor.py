"""`headrace doctor`: examines the deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import ExitCode, Outcome, Section, error_line
from headrace.cli.own_stream import own_stream
from headrace.cli.session import Session
from headrace.model.errors import HeadraceError, UnavailableError

if TYPE_CHECKING:
    from headrace.doctor.account import Account
    from headrace.doctor.findings import Finding
    from headrace.ports.clock import Clock


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    examples = ["headrace doctor", "headrace doctor --deep", "headrace doctor --strict --json"]
    action(app, "doctor", examples=examples)(doctor)


def doctor(
    session: Session,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="also connect to each store, and write and read an event in each container"),
    ] = False,
    aws: Annotated[
        bool | None,
        typer.Option("--aws/--no-aws", help="examine the AWS account, too (default: with --auth aws-iam)"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 1 after warnings, too")] = False,
) -> Outcome:
    """Examine the deployment: stores, containers, logs, dead letters, security, and the AWS account.

    It changes nothing. With --deep it makes a stream in the scope `headrace-checks`, and deletes it. A check that may
    not look is skipped, and says which permission it needs. It exits with 1 if a check has failed.
    """
    from headrace.adapters.system_clock import SystemClock
    from headrace.doctor.examination import examine_deployment
    from headrace.doctor.findings import Verdict, in_order, worst

    clock = SystemClock()
    # Made before the first request: without a region nothing of it can be asked.
    account = _account() if (session.shared.auth == "aws-iam" if aws is None else aws) else None
    findings: list[Finding] = []
    is_silent = False
    try:
        findings += examine_deployment(session.client, session.shared.controller_url, clock)
        if deep:
            findings += _data_path(session, clock)
    except UnavailableError as error:
        if account is None:
            raise
        session.complain(error_line(error))  # the account may say why
        is_silent = True
    if account is not None:
        findings += _account_findings(account, clock)
    findings = in_order(findings)
    verdict = worst(findings)
    is_bad = verdict is Verdict.FAILURE or (strict and verdict is Verdict.WARNING)
    code = ExitCode.REFUSED if is_bad else ExitCode.DONE
    return _outcome(findings, verdict, ExitCode.UNREACHABLE if is_silent else code)


def _data_path(session: Session, clock: Clock) -> list[Finding]:
    from headrace.doctor.data_path import data_path_findings, findings_without_stream, segments_for
    from headrace.doctor.round_trips import SCOPE

    try:
        containers = session.client.admin.cluster.get().container_count
        with own_stream(session, SCOPE, "check", segments_for(containers), must_be_deleted=False) as stream:
            return data_path_findings(session.client, session.open_async, *stream, containers, clock)
    except HeadraceError as error:  # the findings of the other checks say why
        return findings_without_stream(error)


def _account() -> Account:
    from headrace.doctor.account import BotocoreAccount

    return BotocoreAccount()


def _account_findings(account: Account, clock: Clock) -> list[Finding]:
    from datetime import UTC, datetime

    from headrace.doctor.account_checks import account_findings

    return account_findings(account, datetime.fromtimestamp(clock.now_ms() / 1000, UTC))


def _outcome(findings: list[Finding], verdict: str, code: ExitCode) -> Outcome:
    from headrace.doctor.findings import CHECKS, Verdict

    def document_of(finding: Finding) -> Mapping[str, Any]:
        check = CHECKS[finding.check]
        return {
            "check": finding.check,
            "group": check.group,
            "verdict": finding.verdict,
            "question": check.question,
            "evidence": finding.evidence,
            "remedy": check.remedy,
            "page": check.page,
        }

    document = {"verdict": verdict, "findings": [document_of(finding) for finding in findings]}
    rows = [(finding.verdict.upper(), finding.check, finding.evidence) for finding in findings]
    bad = [finding for finding in findings if finding.verdict in (Verdict.WARNING, Verdict.FAILURE)]
    remedies = [(finding.check, CHECKS[finding.check].remedy, f"docs/{CHECKS[finding.check].page}") for finding in bad]
    sections = [Section("What to do", ("CHECK", "REMEDY", "PAGE"), remedies)] if remedies else []
    return Outcome(document, ("VERDICT", "CHECK", "EVIDENCE"), rows, sections=sections, code=code)

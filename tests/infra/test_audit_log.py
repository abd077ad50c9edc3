"""Audit lines reach a log group of their own, which is kept, and into which nothing else writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cdk_assembly import Assembly

from headrace import topology
from infra.constructs.audit_subscriptions import AUDIT_LINES, FILTER_NAME

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

API_FUNCTIONS = {route.function for route in topology.ROUTES}
COPIER = "arn:<AWS::Partition>:lambda:<AWS::Region>:<AWS::AccountId>:function:headrace-audit-log"


def test_the_log_group_outlives_the_functions(assembly: Assembly, smallest_assembly: Assembly):
    group = assembly.only("AWS::Logs::LogGroup", "HeadraceAuditLog")
    assert group.properties["LogGroupName"] == topology.AUDIT_LOG.name
    assert group.properties["RetentionInDays"] == topology.AUDIT_LOG.days
    assert group.attributes["DeletionPolicy"] == "Retain"
    assert smallest_assembly.only("AWS::Logs::LogGroup", "HeadraceAuditLog").attributes["DeletionPolicy"] == "Delete"


def test_each_api_function_sends_its_audit_lines(assembly: Assembly, as_text: Callable[[object], str]):
    found: dict[str, Any] = {}
    for each in assembly.resources("AWS::Logs::SubscriptionFilter"):
        found[each.properties["LogGroupName"]] = each.properties
        assert as_text(each.properties["DestinationArn"]) == COPIER
        assert (each.properties["FilterName"], each.properties["FilterPattern"]) == (FILTER_NAME, AUDIT_LINES)
        made = assembly.named("AWS::Logs::LogGroup", "LogGroupName")[each.properties["LogGroupName"]]
        assert made.logical_id in each.attributes["DependsOn"]
    assert set(found) == {f"/aws/lambda/headrace-{name}" for name in API_FUNCTIONS}


def test_only_logs_of_api_functions_may_call_the_copier(assembly: Assembly, as_text: Callable[[object], str]):
    permissions = [
        each.properties
        for each in assembly.resources("AWS::Lambda::Permission", "HeadraceProcessors")
        if each.properties["Principal"] == "logs.amazonaws.com"
    ]
    groups = "arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:/aws/lambda/headrace-"
    assert {as_text(each["SourceArn"]) for each in permissions} == {f"{groups}{name}:*" for name in API_FUNCTIONS}
    assert {as_text(each["SourceAccount"]) for each in permissions} == {"<AWS::AccountId>"}


def test_the_copier_is_deployed_before_what_calls_it(assembly: Assembly):
    """CloudWatch Logs tries a subscription when it is made."""
    manifest = json.loads((assembly.directory / "manifest.json").read_text())["artifacts"]
    assert "HeadraceProcessors" in manifest["HeadraceControllerApi"]["dependencies"]


def test_no_function_reads_or_deletes_audit_lines(assembly: Assembly, as_text: Callable[[object], str]):
    writers = []
    for role in assembly.resources("AWS::IAM::Role"):
        for policy in role.properties.get("Policies", []):
            for statement in policy["PolicyDocument"]["Statement"]:
                named = statement.get("Resource", [])
                texts = map(as_text, named if isinstance(named, list) else [named])
                if any("/headrace/audit" in text for text in texts):
                    writers.append((statement["Action"], role.properties["Description"]))
    assert writers == [(["logs:CreateLogStream", "logs:PutLogEvents"], "Function audit-log of Headrace")]

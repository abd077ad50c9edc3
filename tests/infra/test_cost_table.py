"""The bill of an idle deployment counts what the templates declare, and the table of deploy.md has its lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import ROOT, Assembly

from functions.observability import NAMESPACE
from headrace.cli import bill
from headrace.cli.bill import idle_lines, total
from headrace.embedded_metrics import CANARY_METRICS, DIMENSION, STORE_METRICS
from headrace.topology import SEGMENT_STORES

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

METRICS_OF_AN_ALARM_MAX = 10
"""CloudWatch's limit for metric math."""
PAGE = Path(ROOT) / "docs" / "operating" / "deploy.md"


def test_the_bill_counts_stores_and_network(default_assembly: Assembly):
    tasks = default_assembly.resources("AWS::ECS::Service")
    assert len(tasks) == SEGMENT_STORES.stores == bill.ZONES * SEGMENT_STORES.stores_per_zone
    endpoints = [
        len(each.properties["SubnetIds"])
        for each in default_assembly.resources("AWS::EC2::VPCEndpoint")
        if each.properties["VpcEndpointType"] == "Interface"
    ]
    assert endpoints == [bill.ZONES] * bill.ENDPOINTS
    assert len(default_assembly.resources("AWS::EC2::NatGateway")) == 1
    assert len(default_assembly.resources("AWS::SecretsManager::Secret")) == bill.SECRETS
    assert len(default_assembly.resources("AWS::KMS::Key")) == 1
    assert len(default_assembly.resources("AWS::ServiceDiscovery::PrivateDnsNamespace")) == 1
    assert len(default_assembly.resources("AWS::Lambda::EventSourceMapping")) == bill.EVENT_SOURCE_MAPPINGS


def test_the_bill_counts_alarms_and_metrics(default_assembly: Assembly):
    alarms = default_assembly.resources("AWS::CloudWatch::Alarm")
    metrics = [metric for alarm in alarms for metric in _metrics(alarm.properties)]
    own = {
        (each["MetricName"], json.dumps(each.get("Dimensions")))
        for each in metrics
        if each["Namespace"] == NAMESPACE and all(named["Name"] != DIMENSION for named in each.get("Dimensions", ()))
    }
    dashboards = default_assembly.resources("AWS::CloudWatch::Dashboard")
    assert (len(alarms), len(metrics)) == (bill.ALARMS, bill.ALARM_METRICS)
    assert (len(own), len(dashboards)) == (bill.OWN_METRICS, bill.DASHBOARDS)
    assert len(default_assembly.resources("AWS::CloudWatch::CompositeAlarm")) == bill.COMPOSITE_ALARMS
    most = max(len(_metrics(alarm.properties)) for alarm in alarms)
    assert most <= METRICS_OF_AN_ALARM_MAX


def test_the_bill_counts_the_metrics_of_stores_and_the_canary(default_assembly: Assembly):
    services = {
        each["Value"]
        for task in default_assembly.resources("AWS::ECS::TaskDefinition")
        for container in task.properties["ContainerDefinitions"]
        for each in container["Environment"]
        if each["Name"] == "HEADRACE_METRICS_SERVICE"
    }
    canaries = [each for each in default_assembly.named("AWS::Lambda::Function", "FunctionName") if "canary" in each]
    assert services == {each.properties["ServiceName"] for each in default_assembly.resources("AWS::ECS::Service")}
    counted = len(services) * len(STORE_METRICS) + len(canaries) * len(CANARY_METRICS)
    assert counted == bill.STORE_METRICS_IN_ALL


def _metrics(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    if "Metrics" in alarm:
        return [metric["MetricStat"]["Metric"] for metric in alarm["Metrics"] if "MetricStat" in metric]
    return [alarm]


def test_the_table_has_the_lines_of_the_bill():
    section = PAGE.read_text().partition("## Cost of an idle deployment")[2].partition("\n\nWith")[0]
    rows = re.findall(r"^\| (?!\*\*)([^|]+) \| (?:about )?(\d+) \|$", section, re.MULTILINE)
    lines = idle_lines()
    assert len(rows) == len(lines)
    for (text, dollars), line in zip(rows, lines, strict=True):
        assert text.startswith(line.text)
        assert int(dollars) == int(line.dollars + 0.5), text
    together, without_job = re.findall(r"\*\*about (\d+), without the Spark job (\d+)\*\*", section)[0]
    assert int(together) == int(total(lines) + 0.5)
    assert int(without_job) == int(total(idle_lines(spark_job=False)) + 0.5)

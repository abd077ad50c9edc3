"""The table of idle costs in docs/operating/deploy.md counts what the templates declare."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import ROOT, Assembly

from functions.observability import NAMESPACE
from headrace import topology
from headrace.topology import SEGMENT_STORES

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

PAGE = Path(ROOT) / "docs" / "operating" / "deploy.md"
HOURS = 730
MINUTES_OF_30_DAYS = 30 * 24 * 60
PRICES = {
    "core of an hour": 0.03238,
    "GB of memory of an hour": 0.00356,
    "GiB of a volume": 0.08,
    "endpoint in a zone, an hour": 0.01,
    "gateway and its address, an hour": 0.05,
    "metric of an alarm": 0.10,
    "metric": 0.30,
    "dashboard": 3.0,
    "million ticks": 2.20,
}
"""In us-east-1, November 2026."""


@pytest.fixture(scope="module")
def rows() -> dict[str, float]:
    """The dollars by the text of the row, of the rows that have both."""
    section = PAGE.read_text().partition("## Cost of an idle deployment")[2].partition("\n\nWith")[0]
    found = re.findall(r"^\| (?!\*\*)([^|]+) \| (?:about )?(\d+) \|$", section, re.MULTILINE)
    return {text: float(dollars) for text, dollars in found}


def _cost(rows: dict[str, float], beginning: str) -> float:
    (dollars,) = [each for text, each in rows.items() if text.startswith(beginning)]
    return dollars


def test_stores_and_network_cost_what_the_table_says(assembly: Assembly, rows):
    tasks = assembly.resources("AWS::ECS::Service")
    cores, memory_gb = SEGMENT_STORES.cpu_units / 1024, SEGMENT_STORES.memory_mb / 1024
    hourly = cores * PRICES["core of an hour"] + memory_gb * PRICES["GB of memory of an hour"]
    expected = f"{len(tasks)} Fargate tasks, ARM, {cores:.0f} vCPU and {memory_gb:.0f} GB"
    assert _cost(rows, expected) == round(len(tasks) * HOURS * hourly)
    volumes = f"{len(tasks)} \N{MULTIPLICATION SIGN} {SEGMENT_STORES.volume_gib} GB gp3"
    assert _cost(rows, volumes) == round(len(tasks) * SEGMENT_STORES.volume_gib * PRICES["GiB of a volume"])
    endpoints = [
        len(each.properties["SubnetIds"])
        for each in assembly.resources("AWS::EC2::VPCEndpoint")
        if each.properties["VpcEndpointType"] == "Interface"
    ]
    in_zones = f"{len(endpoints)} interface endpoints in {endpoints[0]} zones"
    assert _cost(rows, in_zones) == round(sum(endpoints) * HOURS * PRICES["endpoint in a zone, an hour"])
    gateways = len(assembly.resources("AWS::EC2::NatGateway"))
    gateway = round(gateways * HOURS * PRICES["gateway and its address, an hour"], 0)
    assert abs(_cost(rows, "NAT gateway and its address") - gateway) <= 1


def test_alarms_and_metrics_cost_what_the_table_says(assembly: Assembly, rows):
    alarms = assembly.resources("AWS::CloudWatch::Alarm")
    metrics = [metric for alarm in alarms for metric in _metrics(alarm.properties)]
    row = f"{len(alarms)} alarms on {len(metrics)} metrics"
    assert _cost(rows, row) == round(len(metrics) * PRICES["metric of an alarm"])
    own = {
        (each["MetricName"], json.dumps(each.get("Dimensions"))) for each in metrics if each["Namespace"] == NAMESPACE
    }
    assert _cost(rows, f"{len(own)} metrics of functions and log lines") == round(len(own) * PRICES["metric"])
    dashboards = len(assembly.resources("AWS::CloudWatch::Dashboard"))
    assert _cost(rows, f"{dashboards} dashboard") == dashboards * PRICES["dashboard"]


def _metrics(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    if "Metrics" in alarm:
        return [one["MetricStat"]["Metric"] for one in alarm["Metrics"] if "MetricStat" in one]
    return [alarm]


def test_ticks_and_polls_are_counted_in_the_table(assembly: Assembly, rows):
    ticks = sum(
        len(tick.delays_s(bucket, minute))
        for tick in topology.TICKS
        for bucket in range(tick.buckets)
        for minute in range(MINUTES_OF_30_DAYS)
    )
    assert _cost(rows, f"{ticks:,} ticks") == round(ticks / 1e6 * PRICES["million ticks"])
    mappings = len(assembly.resources("AWS::Lambda::EventSourceMapping"))
    assert _cost(rows, f"polling by {mappings} event source mappings") > 0
    stores = len(assembly.resources("AWS::ECS::Service")) * SEGMENT_STORES.processes
    assert _cost(rows, f"leases of {stores} stores") > 0


def test_the_rows_add_up(rows):
    total, without_job = re.findall(r"\*\*about (\d+), without the Spark job (\d+)\*\*", PAGE.read_text())[0]
    assert float(total) == sum(rows.values())
    assert float(without_job) == sum(rows.values()) - _cost(rows, "NAT gateway")

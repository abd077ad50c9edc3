"""Each graph shows metrics that exist, with the dimensions of those that report them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cdk_assembly import Assembly, plain
from declared_metrics import COUNTED, OF_AWS, OF_LINES, REPORTED_BY_CANARY, REPORTED_BY_STORES

from headrace import topology
from headrace.embedded_metrics import DIMENSION, NAMESPACE
from infra.constructs.deployed_resources import CANARY_NAME
from infra.constructs.store_panels import ROWS, STORE_PANELS

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

Metric = tuple[str, str, tuple[tuple[str, str], ...]]
"""Namespace, name and dimensions."""


def _widgets(assembly: Assembly) -> list[dict[str, Any]]:
    text = plain(assembly.only("AWS::CloudWatch::Dashboard").properties["DashboardBody"])
    return list(json.loads(text)["widgets"])


def _shown(assembly: Assembly) -> set[Metric]:
    """The metrics of all widgets; one of metric math has variables of other entries."""
    metrics: set[Metric] = set()
    for widget in _widgets(assembly):
        for entry in widget["properties"].get("metrics", []):
            texts = [each for each in entry if isinstance(each, str)]
            if not texts:
                continue
            namespace, name, *pairs = texts
            metrics.add((namespace, name, tuple(zip(pairs[::2], pairs[1::2], strict=True))))
    return metrics


def _watched(assembly: Assembly) -> set[Metric]:
    metrics: set[Metric] = set()
    for alarm in assembly.named("AWS::CloudWatch::Alarm", "AlarmName").values():
        properties = alarm.properties
        queries = properties.get("Metrics", [{"MetricStat": {"Metric": properties}}])
        for metric in (each["MetricStat"]["Metric"] for each in queries if "MetricStat" in each):
            dimensions = tuple((each["Name"], plain(each["Value"])) for each in metric.get("Dimensions", []))
            metrics.add((metric["Namespace"], metric["MetricName"], dimensions))
    return metrics


def _check(metric: Metric, services: set[str]) -> None:
    namespace, name, dimensions = metric
    if namespace != NAMESPACE:
        assert name in OF_AWS[namespace], metric
        return
    match dict(dimensions):
        case {"service": function}:
            assert name in COUNTED, metric
            assert function in {*(each.name for each in topology.FUNCTIONS), *_OTHER_FUNCTIONS}, metric
        case values if values.keys() == {DIMENSION}:
            service = values[DIMENSION]
            names = REPORTED_BY_CANARY if service == CANARY_NAME else REPORTED_BY_STORES
            assert name in names, metric
            assert service in services | {CANARY_NAME}, metric
        case {}:
            assert name in OF_LINES, metric


_OTHER_FUNCTIONS = {
    each.name
    for each in (
        topology.REPLICATION_GATE,
        topology.TOKEN_KEY_ROTATION,
        topology.CERTIFICATES,
        topology.EXTERNAL_TARGETS,
    )
}


@pytest.mark.parametrize("name", ["default_assembly", "smallest_assembly", "external_assembly"])
def test_each_metric_of_graphs_and_alarms_exists(name, request: pytest.FixtureRequest):
    assembly: Assembly = request.getfixturevalue(name)
    services = set(assembly.named("AWS::ECS::Service", "ServiceName"))
    shown, watched = _shown(assembly), _watched(assembly)
    assert len(shown) > 100
    for metric in shown | watched:
        _check(metric, services)


def test_rows_have_their_headings_in_order(default_assembly: Assembly):
    texts = [each["properties"]["markdown"] for each in _widgets(default_assembly) if each["type"] == "text"]
    assert texts == [f"## {row.capitalize()}" for row in ROWS]


def test_each_reported_metric_is_shown(default_assembly: Assembly):
    shown = {name for namespace, name, _ in _shown(default_assembly) if namespace == NAMESPACE}
    assert shown >= REPORTED_BY_STORES | REPORTED_BY_CANARY
    assert {name for panel in STORE_PANELS for name, _ in panel.reports} <= REPORTED_BY_STORES


def test_lines_show_where_an_objective_or_a_limit_is(default_assembly: Assembly):
    lines = {
        each["properties"]["title"]: [line["value"] for line in each["properties"]["annotations"]["horizontal"]]
        for each in _widgets(default_assembly)
        if each["properties"].get("annotations", {}).get("horizontal")
    }
    assert lines["Acknowledgements, p50 and p99, ms"] == [50]
    assert lines["Store CPU, %"] == [60]
    assert lines["Burn rate over an hour"] == [14.4]


def test_states_are_those_of_alarms_that_exist(default_assembly: Assembly):
    (widget,) = [each for each in _widgets(default_assembly) if each["type"] == "alarm"]
    names = [arn.rpartition(":")[2] for arn in widget["properties"]["alarms"]]
    existing = {
        name
        for type_ in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")
        for name in default_assembly.named(type_, "AlarmName")
    }
    assert set(names) <= existing
    assert len(names) == len(set(names))
    assert {"headrace-canary-failed", "headrace-ack-budget-fast", "headrace-api-5xx"} <= set(names)


def test_budgets_cover_the_time_range_of_the_dashboard(default_assembly: Assembly):
    (widget,) = [each for each in _widgets(default_assembly) if each["properties"].get("setPeriodToTimeRange")]
    entries = [each for entry in widget["properties"]["metrics"] for each in entry if isinstance(each, dict)]
    expressions = [each["expression"] for each in entries if "expression" in each]
    assert len(expressions) == 3, "acknowledgements, API, canary"
    assert all(re.search(r"100 \* \(1 - ", each) for each in expressions)

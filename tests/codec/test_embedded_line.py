"""The log lines from which CloudWatch makes metrics are what its specification wants."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from headrace.codec.embedded_line import METRICS_PER_LINE_MAX, embedded_line
from headrace.embedded_metrics import CANARY_METRICS, STORE_METRICS, EmbeddedMetric
from headrace.model.errors import InvalidRequestError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating" / "metrics.md"
TIME_MS = 1_796_000_000_000

_UNITS = [
    *("Seconds", "Microseconds", "Milliseconds", "Bytes", "Kilobytes", "Megabytes", "Gigabytes", "Terabytes"),
    *("Bits", "Kilobits", "Megabits", "Gigabits", "Terabits", "Percent", "Count", "None"),
]
_METRIC = {
    "type": "object",
    "required": ["Name"],
    "properties": {
        "Name": {"type": "string", "minLength": 1, "maxLength": 1024},
        "Unit": {"enum": _UNITS},
        "StorageResolution": {"enum": [1, 60]},
    },
}
_DIMENSION_SET = {"type": "array", "maxItems": 30, "items": {"type": "string", "minLength": 1, "maxLength": 250}}
_DIRECTIVE = {
    "type": "object",
    "required": ["Namespace", "Dimensions", "Metrics"],
    "properties": {
        "Namespace": {"type": "string", "minLength": 1, "maxLength": 1024},
        "Dimensions": {"type": "array", "minItems": 1, "items": _DIMENSION_SET},
        "Metrics": {"type": "array", "minItems": 1, "maxItems": 100, "items": _METRIC},
    },
}
SPECIFICATION = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "properties": {
                "Timestamp": {"type": "integer", "minimum": 10**12},
                "CloudWatchMetrics": {"type": "array", "minItems": 1, "items": _DIRECTIVE},
            },
        }
    },
}
"""As AWS describes the format, from a minimum that tells milliseconds from seconds."""


def _checked(line: str) -> dict[str, Any]:
    """The document of a line, if it is in the format, and each metric and dimension has its value at the root."""
    document: dict[str, Any] = json.loads(line)
    Draft202012Validator(SPECIFICATION).validate(document)
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    for dimension in directive["Dimensions"][0]:
        assert isinstance(document[dimension], str)
    for metric in directive["Metrics"]:
        assert isinstance(document[metric["Name"]], int | float)
    return document


@pytest.mark.parametrize("metrics", [STORE_METRICS, CANARY_METRICS], ids=["stores", "canary"])
def test_a_line_has_the_form_of_the_specification(metrics: tuple[EmbeddedMetric, ...]):
    values = {metric.name: number + 0.5 for number, metric in enumerate(metrics)}
    line = embedded_line(metrics, values, "headrace-store-0", TIME_MS)
    document = _checked(line)
    assert "\n" not in line
    assert document["_aws"]["Timestamp"] == TIME_MS
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Headrace", [["Service"]])
    assert directive["Metrics"] == [{"Name": each.name, "Unit": each.unit} for each in metrics]
    assert {name: document[name] for name in values} == values
    assert document["Service"] == "headrace-store-0"


def test_a_metric_without_a_value_is_absent():
    document = _checked(embedded_line(STORE_METRICS, {"Acks": 0}, "headrace-store-0", TIME_MS))
    assert document["_aws"]["CloudWatchMetrics"][0]["Metrics"] == [{"Name": "Acks", "Unit": "Count"}]
    assert document.keys() == {"_aws", "Service", "Acks"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "0 metrics"),
        ({"Acks": math.nan}, "Acks is nan"),
        ({"Acks": 1, "BytesIn": math.inf}, "BytesIn is inf"),
        ({"BytesIn": -math.inf}, "BytesIn is -inf"),
        ({"BytesIn": 2.0**361}, "finite"),
        ({"Acts": 1}, "'Acts' is not one of"),
    ],
)
def test_values_that_cloudwatch_drops_are_refused(values: dict[str, float], said: str):
    with pytest.raises(InvalidRequestError, match=said):
        embedded_line(STORE_METRICS, values, "headrace-store-0", TIME_MS)


@pytest.mark.parametrize("service", ["", " ", "a\nb", "caf\u00e9", "x" * 1025])
def test_a_dimension_has_a_text_that_cloudwatch_takes(service: str):
    with pytest.raises(InvalidRequestError, match="dimension"):
        embedded_line(STORE_METRICS, {"Acks": 1}, service, TIME_MS)


def test_a_line_has_no_more_metrics_than_a_directive_may():
    many = tuple(EmbeddedMetric(f"Metric{number}", "Count", "") for number in range(METRICS_PER_LINE_MAX + 1))
    values = {metric.name: 1.0 for metric in many}
    with pytest.raises(InvalidRequestError, match="101 metrics"):
        embedded_line(many, values, "s", TIME_MS)
    values.popitem()
    _checked(embedded_line(many, values, "s", TIME_MS))


def test_declared_names_are_distinct():
    names = [metric.name for metric in (*STORE_METRICS, *CANARY_METRICS)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("heading", "metrics"), [("## Metrics of stores in CloudWatch", STORE_METRICS), ("## Canary", CANARY_METRICS)]
)
def test_the_manual_lists_the_metrics(heading: str, metrics: tuple[EmbeddedMetric, ...]):
    section = PAGE.read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(each.name, each.unit, each.meaning) for each in metrics]

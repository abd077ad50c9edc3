"""The signals of a game day: what stores have logged, and which alarms of a deployment that would raise.

CloudWatch sees the same lines. An alarm on a line counts those with its text; an alarm on metrics computes its own
expression over the embedded lines. Of the periods that an alarm waits for, one is enough here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aws_cdk import aws_cloudwatch as cloudwatch
from metric_math import compute

from headrace.embedded_metrics import DIMENSION
from infra.constructs.alarms import Alarm
from infra.constructs.declared_alarms import declared_alarms
from infra.constructs.deployed_resources import service_name
from infra.constructs.log_alarms import LOG_ALARMS
from infra.settings import Settings

ZONES = range(3)
SERVICES = [service_name(zone) for zone in ZONES]

Minute = Mapping[tuple[str, str], Sequence[float]]
"""The values that were reported in a minute, by service and metric."""


class StoreLogs:
    """The logs of the stores of a stack whose data are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def lines(self) -> list[str]:
        """All lines that are complete so far."""
        texts = [file.read_text() for file in sorted(self._directory.rglob("logs/store-*.log"))]
        return [line for text in texts for line in text.split("\n")[:-1]]

    def events(self, event: str) -> int:
        """How many lines tell this event."""
        return sum(f"event={event} " in line for line in self.lines())

    def reported(self, metric: str) -> float:
        """The greatest value of a metric that a store has reported; 0 if none has."""
        return max(
            (max(values) for each in self.minutes() for (_, name), values in each.items() if name == metric), default=0
        )

    def minutes(self) -> list[Minute]:
        """The minutes that were reported, in their order."""
        found: dict[int, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in self.lines():
            document = json.loads(line) if line.startswith('{"_aws"') else {}
            for directive in document.get("_aws", {}).get("CloudWatchMetrics", ()):
                minute = found[document["_aws"]["Timestamp"] // 60_000]
                for metric in directive["Metrics"]:
                    minute[document[DIMENSION], metric["Name"]].append(document[metric["Name"]])
        return [found[minute] for minute in sorted(found)]


class Alarms:
    """The alarms of a deployment without any choice."""

    def __init__(self) -> None:
        self._alarms = {each.name: each for each in declared_alarms(Settings())}
        self._of_lines = {each.name: each for each in LOG_ALARMS}

    def is_breached(self, name: str, logs: StoreLogs) -> bool:
        """Whether an alarm would have been raised, had it lasted. `ZONE` in a name is any of the zones."""
        if name in self._of_lines:
            return any(self._of_lines[name].searched in line for line in logs.lines())
        names = [name.replace("ZONE", str(zone)) for zone in ZONES]
        return any(_is_beyond(self._alarms[each], minute) for each in names for minute in logs.minutes())


def _is_beyond(alarm: Alarm, minute: Minute) -> bool:
    metric = alarm.metric
    if isinstance(metric, cloudwatch.MathExpression):
        values = {name: _value(each, minute) for name, each in (metric.using_metrics or {}).items()}
        value = compute(metric.expression, values)
    else:
        value = _value(metric, minute)
    if value is None:
        return False
    return value < alarm.threshold if alarm.is_below else value > alarm.threshold


def _value(metric: cloudwatch.IMetric, minute: Minute) -> float | None:
    assert isinstance(metric, cloudwatch.Metric)
    (service,) = (metric.dimensions or {}).values()
    found = minute.get((service, metric.metric_name))
    if not found:
        return None
    statistics: dict[str, Callable[[Sequence[float]], float]] = {
        "Maximum": max,
        "Minimum": min,
        "Sum": sum,
        "SampleCount": len,
    }
    return statistics[metric.statistic](found)

"""Alarms on objectives: how fast the errors that an objective allows in 30 days are used up.

A burn rate of 1 uses them up in exactly 30 days, 14.4 uses 2 % of them in an hour, 3 uses 2.5 % in six hours. An alarm
is raised while the rate is exceeded over a long window, which leaves out what is short, and over a short one, which
ends it soon after the cause is removed. An alarm of CloudWatch has one period, so each window is an alarm of its own,
and a composite alarm has both. Rates are computed from sums: an average of percentiles is not a percentile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sns as sns
from constructs import Construct

from headrace.embedded_metrics import CANARY_METRICS
from infra.constructs.alarms import Alarm, Severity, add_alarms, add_composite
from infra.constructs.deployed_resources import CANARY_NAME, service_name
from infra.constructs.named_metrics import api_metric, reported_metric

ZONES_OF_AN_ALARM_MAX = 5
"""CloudWatch computes an alarm with at most ten metrics, and a zone has two."""
BAD_MIN = 10
"""In a window. Fewer are no trend: one slow acknowledgement of three in five minutes wakes no person."""

ACKS_BUDGET = 0.01
CONTROL_PLANE_BUDGET = 0.001
CANARY_BUDGET = 0.001

_ONE_HOUR, _SIX_HOURS = cdk.Duration.hours(1), cdk.Duration.hours(6)
_FIVE_MINUTES, _HALF_AN_HOUR = cdk.Duration.minutes(5), cdk.Duration.minutes(30)


@dataclass(frozen=True, slots=True)
class Objective:
    """What may go wrong: `budget` is the part of `total` that may be `bad`, both expressions of metric math.

    `metrics` gives their variables, as sums over a period. `suffix` tells the parts of an objective apart.
    """

    budget: float
    total: str
    bad: str
    metrics: Callable[[cdk.Duration], Mapping[str, cloudwatch.IMetric]]
    suffix: str = ""

    def burn_rate(self, period: cdk.Duration, label: str | None = None) -> cloudwatch.MathExpression:
        """How many times faster than allowed the budget was used in a period; 0 while hardly anything is bad."""
        return cloudwatch.MathExpression(
            expression=f"IF({self.bad} >= {BAD_MIN}, ({self.bad}) / ({self.total}) / {self.budget}, 0)",
            using_metrics=self.metrics(period),
            period=period,
            label=label,
        )

    def budget_left(self, label: str) -> cloudwatch.MathExpression:
        """Per cent of the budget of a time range that are left; below 0: the objective was missed."""
        period = cdk.Duration.minutes(5)
        return cloudwatch.MathExpression(
            expression=f"IF({self.total} > 0, 100 * (1 - ({self.bad}) / ({self.total}) / {self.budget}), 100)",
            using_metrics=self.metrics(period),
            period=period,
            label=label,
        )


@dataclass(frozen=True, slots=True)
class BurnRateAlarm:
    """Raised while a part of an objective burns `factor` times faster than allowed, over both windows."""

    name: str
    meaning: str
    objectives: tuple[Objective, ...]
    factor: float
    severity: Severity
    windows: tuple[tuple[str, cdk.Duration], tuple[str, cdk.Duration]]

    def window_alarms(self, objective: Objective) -> list[Alarm]:
        """An alarm for each window, which report nothing by themselves."""
        return [
            Alarm(
                f"{self.name}-{window}{objective.suffix}",
                f"A part of {self.name}, over {window}",
                objective.burn_rate(period),
                threshold=self.factor,
                anchor=self.name,
                is_reported=False,
            )
            for window, period in self.windows
        ]


_FAST = (("1h", _ONE_HOUR), ("5m", _FIVE_MINUTES))
_SLOW = (("6h", _SIX_HOURS), ("30m", _HALF_AN_HOUR))


def acks_objectives(zones: int) -> tuple[Objective, ...]:
    """99 % of acknowledgements within 50 ms, in groups of as many zones as an alarm can have."""
    groups = [range(zones)[first : first + ZONES_OF_AN_ALARM_MAX] for first in range(0, zones, ZONES_OF_AN_ALARM_MAX)]
    return tuple(_acks_objective(group, f"-{number}" if number else "") for number, group in enumerate(groups))


def _acks_objective(zones: range, suffix: str) -> Objective:
    def metrics(period: cdk.Duration) -> dict[str, cloudwatch.IMetric]:
        names = {"acks": "Acks", "fast": "AcksFast"}
        return {
            f"{id_}{zone}": reported_metric(service_name(zone), name, "Sum", period)
            for zone in zones
            for id_, name in names.items()
        }

    total = " + ".join(f"FILL(acks{zone}, 0)" for zone in zones)
    fast = " - ".join(f"FILL(fast{zone}, 0)" for zone in zones)
    return Objective(ACKS_BUDGET, total, f"{total} - {fast}", metrics, suffix)


def control_plane_objective(api_id: str) -> Objective:
    """99.9 % of the calls of the API without a 5xx."""

    def metrics(period: cdk.Duration) -> dict[str, cloudwatch.IMetric]:
        return {"calls": api_metric(api_id, "Count", period=period), "faults": api_metric(api_id, "5xx", period=period)}

    return Objective(CONTROL_PLANE_BUDGET, "FILL(calls, 0)", "FILL(faults, 0)", metrics)


def canary_objective() -> Objective:
    """99.9 % of the canary's events written and read back."""
    writes, failures, _delay = (each.name for each in CANARY_METRICS)

    def metrics(period: cdk.Duration) -> dict[str, cloudwatch.IMetric]:
        named = {"writes": writes, "failures": failures}
        return {id_: reported_metric(CANARY_NAME, name, "Sum", period) for id_, name in named.items()}

    return Objective(CANARY_BUDGET, "FILL(writes, 0)", "FILL(failures, 0)", metrics)


def acks_burn_rates(zones: int) -> list[BurnRateAlarm]:
    """A fast one that wakes a person, and a slow one."""
    objectives = acks_objectives(zones)
    return [
        BurnRateAlarm(
            "headrace-ack-budget-fast",
            "So many acknowledgements take longer than 50 ms that two days use up what a month allows",
            objectives,
            14.4,
            "page",
            _FAST,
        ),
        BurnRateAlarm(
            "headrace-ack-budget-slow",
            "More acknowledgements than the objective allows have taken longer than 50 ms for hours",
            objectives,
            3,
            "ticket",
            _SLOW,
        ),
    ]


def control_plane_burn_rate(api_id: str) -> BurnRateAlarm:
    return BurnRateAlarm(
        "headrace-api-5xx",
        "The HTTP API answers so many calls with 5xx that two days use up what a month allows",
        (control_plane_objective(api_id),),
        14.4,
        "page",
        _FAST,
    )


def add_burn_rate(scope: Construct, topic: sns.ITopic, declared: BurnRateAlarm) -> cloudwatch.CompositeAlarm:
    """Create the alarms of the windows, and the composite alarm of them."""
    windows = [add_alarms(scope, topic, declared.window_alarms(objective)) for objective in declared.objectives]
    rule = cloudwatch.AlarmRule.any_of(*(cloudwatch.AlarmRule.all_of(*both) for both in windows))
    return add_composite(scope, declared.name, declared.meaning, rule, topic)

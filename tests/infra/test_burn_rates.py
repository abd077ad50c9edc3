"""The alarms on objectives, as the templates declare them, over recorded minutes of stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from cdk_assembly import Assembly, plain
from metric_math import Minute, compute, is_raised

from headrace.embedded_metrics import DIMENSION, NAMESPACE
from headrace.topology import SEGMENT_STORES
from infra.constructs.deployed_resources import service_name

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

ACKS_IN_A_MINUTE = 6_000
BUDGET = 0.01
FAST, SLOW = "headrace-ack-budget-fast", "headrace-ack-budget-slow"


def _minute(slow_part: float, acks: int = ACKS_IN_A_MINUTE) -> Minute:
    """What the stores of all zones report, as many each."""
    slow = round(acks * slow_part)
    return {
        (name, (service_name(zone),)): float(value)
        for zone in range(SEGMENT_STORES.stores)
        for name, value in (("Acks", acks), ("AcksFast", acks - slow))
    }


GOOD = _minute(0.0005)
SILENT: Minute = {}


@pytest.fixture
def is_on(default_assembly: Assembly) -> Callable[[str, Sequence[Minute]], bool]:
    """Whether a composite alarm is raised after the last of some minutes."""
    composites = default_assembly.named("AWS::CloudWatch::CompositeAlarm", "AlarmName")

    def judge(name: str, minutes: Sequence[Minute]) -> bool:
        composite = composites[name]
        parts = [
            default_assembly.get(composite.stack, {"Ref": logical_id}).properties
            for logical_id in re.findall(r"<(\w+)\.Arn>", plain(composite.properties["AlarmRule"]))
        ]
        assert len(parts) == 2
        assert " AND " in plain(composite.properties["AlarmRule"])
        return all(is_raised(part, minutes) for part in parts)

    return judge


def _first(minutes: Sequence[Minute], judge: Callable[[Sequence[Minute]], bool], start: int) -> int | None:
    """The first minute from `start` on, counted from there, after which the alarm is raised."""
    return next((now - start for now in range(start + 1, len(minutes) + 1) if judge(minutes[:now])), None)


def test_windows_sum_the_same_metrics_of_all_zones(default_assembly: Assembly):
    alarms = default_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    windows = {
        f"{FAST}-1h": (3600, 14.4),
        f"{FAST}-5m": (300, 14.4),
        f"{SLOW}-6h": (21600, 3),
        f"{SLOW}-30m": (1800, 3),
    }
    for name, (period, factor) in windows.items():
        properties = alarms[name].properties
        stats = [each["MetricStat"] for each in properties["Metrics"] if "MetricStat" in each]
        assert {stat["Period"] for stat in stats} == {period}
        assert properties["Threshold"] == factor
        assert "AlarmActions" not in properties, "only the composite alarm reports"
        watched = {(each["Metric"]["MetricName"], each["Metric"]["Dimensions"][0]["Value"]) for each in stats}
        zones = range(SEGMENT_STORES.stores)
        assert watched == {(metric, service_name(zone)) for metric in ("Acks", "AcksFast") for zone in zones}
        assert {each["Metric"]["Namespace"] for each in stats} == {NAMESPACE}
        assert {each["Metric"]["Dimensions"][0]["Name"] for each in stats} == {DIMENSION}


def test_all_acknowledgements_slow_page_within_minutes(is_on):
    minutes = [GOOD] * 360 + [_minute(1)] * 60
    assert _first(minutes, lambda seen: is_on(FAST, seen), 360) == 9


def test_a_burn_above_the_factor_pages_within_its_hour(is_on):
    minutes = [GOOD] * 360 + [_minute(14.5 * BUDGET)] * 60
    raised = _first(minutes, lambda seen: is_on(FAST, seen), 360)
    assert raised is not None
    assert raised <= 60
    fresh = [_minute(14.5 * BUDGET)] * 5
    assert is_on(FAST, fresh), "a deployment that has just begun"


def test_a_page_ends_soon_after_its_cause(is_on):
    minutes = [GOOD] * 360 + [_minute(1)] * 20
    assert is_on(FAST, minutes)
    healed = [*minutes, *[GOOD] * 5]
    assert not is_on(FAST, healed)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.9])
def test_a_burn_below_the_factors_raises_nothing(is_on, factor):
    minutes = [_minute(factor * BUDGET)] * 720
    assert not is_on(FAST, minutes)
    assert not is_on(SLOW, minutes)


def test_a_slow_burn_is_a_ticket_and_no_page(is_on):
    minutes = [GOOD] * 360 + [_minute(4 * BUDGET)] * 360
    raised = _first(minutes, lambda seen: is_on(SLOW, seen), 360)
    assert raised is not None
    assert 240 < raised <= 360
    assert not is_on(FAST, minutes)
    assert not is_on(SLOW, [*minutes, *[GOOD] * 30])


@pytest.mark.parametrize("quiet", [SILENT, _minute(0, acks=0), _minute(1, acks=1)], ids=["silent", "zero", "few"])
def test_no_traffic_raises_nothing(is_on, quiet):
    for name in (FAST, SLOW):
        assert not is_on(name, [quiet] * 3)
    assert not is_on(FAST, [GOOD] * 60 + [SILENT] * 60)


def test_a_short_peak_pages_no_person(is_on):
    minutes = [GOOD] * 360 + [_minute(1)] * 5 + [GOOD] * 30
    assert _first(minutes, lambda seen: is_on(FAST, seen), 360) is None


def test_one_silent_zone_hides_no_other(is_on):
    zone = service_name(0)
    burning = {sample: value for sample, value in _minute(1).items() if sample[1] != (zone,)}
    assert is_on(FAST, [burning] * 10)


def test_faults_of_the_api_burn_its_budget(default_assembly: Assembly):
    alarms = default_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    for window in ("1h", "5m"):
        properties = alarms[f"headrace-api-5xx-{window}"].properties
        stats = [each["MetricStat"] for each in properties["Metrics"] if "MetricStat" in each]
        (api,) = {str(stat["Metric"]["Dimensions"][0]["Value"]) for stat in stats}

        def minute(calls: float, faults: float, api: str = api) -> Minute:
            return {("Count", (api,)): calls, ("5xx", (api,)): faults}

        assert not is_raised(properties, [minute(1_000, 14)])
        assert is_raised(properties, [minute(1_000, 15)])
        assert not is_raised(properties, [minute(1_000, 0)])
        assert not is_raised(properties, [minute(9, 9)]), "too few"


SIX_ZONES = """
from infra.constructs.burn_rates import acks_burn_rates
for each in acks_burn_rates(6)[:1]:
    for objective in each.objectives:
        for alarm in each.window_alarms(objective):
            print(alarm.name, sorted(alarm.metric.using_metrics))
"""


def test_more_zones_than_an_alarm_takes_are_split(run_python):
    finished = run_python(SIX_ZONES)
    assert finished.returncode == 0, finished.stderr
    lines = dict(line.split(" ", 1) for line in finished.stdout.splitlines())
    assert set(lines) == {f"{FAST}-1h", f"{FAST}-5m", f"{FAST}-1h-1", f"{FAST}-5m-1"}
    assert lines[f"{FAST}-1h-1"] == "['acks5', 'fast5']"


def test_unknown_metric_math_is_refused():
    with pytest.raises(AssertionError, match="does not know"):
        compute("RATE(a)", {"a": 1.0})

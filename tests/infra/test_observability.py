"""Every queue, function and store has alarms, and every alarm reaches somebody."""

from __future__ import annotations

import pytest

from functions.observability import NAMESPACE
from headrace import topology

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def alarms(assembly):
    return assembly.named("AWS::CloudWatch::Alarm", "AlarmName")


def test_there_is_an_alarm_for_everything_that_can_go_wrong(alarms):
    expected = {f"headrace-{function.name}-errors" for function in topology.FUNCTIONS}
    for queue in topology.QUEUES:
        name = queue.name.removesuffix(".fifo")
        expected |= {f"{name}-dead-letters", f"{name}-age"}
    for index in range(topology.SEGMENT_STORES.stores):
        expected |= {f"headrace-store-{index}-{what}" for what in ("running", "volume", "memory")}
    expected |= {"headrace-stores-lost", "headrace-containers-given-up"}
    assert set(alarms) == expected


def test_the_cluster_is_watched_by_what_the_functions_count(alarms):
    lost, given_up = (alarms[f"headrace-{name}"].properties for name in ("stores-lost", "containers-given-up"))
    assert (lost["Namespace"], lost["MetricName"], lost["EvaluationPeriods"]) == (NAMESPACE, "StoresLost", 3)
    assert (given_up["MetricName"], given_up["Statistic"], given_up["Threshold"]) == ("ContainersGivenUp", "Sum", 0)
    assert lost["TreatMissingData"] == given_up["TreatMissingData"] == "notBreaching"


def test_every_alarm_goes_to_the_topic(assembly, alarms):
    topic = assembly.only("AWS::SNS::Topic")
    for alarm in alarms.values():
        (action,) = alarm.properties["AlarmActions"]
        assert assembly.get(alarm.stack, action).logical_id == topic.logical_id


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_one_dead_letter_is_enough(alarms, declared, as_text):
    properties = alarms[f"{declared.name.removesuffix('.fifo')}-dead-letters"].properties
    assert (properties["ComparisonOperator"], properties["Threshold"]) == ("GreaterThanThreshold", 0)
    assert [one["Expression"] for one in properties["Metrics"] if "Expression" in one] == [
        "FILL(waiting, 0) + FILL(received, 0)"
    ]
    metrics = [one["MetricStat"]["Metric"] for one in properties["Metrics"] if "MetricStat" in one]
    assert {one["MetricName"] for one in metrics} == {"ApproximateNumberOfMessagesVisible", "NumberOfMessagesReceived"}
    for (dimension,) in (one["Dimensions"] for one in metrics):
        assert "DeadLetters" in as_text(dimension["Value"])


def test_a_store_that_reports_nothing_is_not_running(alarms):
    for index in range(topology.SEGMENT_STORES.stores):
        properties = alarms[f"headrace-store-{index}-running"].properties
        assert properties["TreatMissingData"] == "breaching"
        assert {d["Name"]: d["Value"] for d in properties["Dimensions"]}.keys() == {"ClusterName", "ServiceName"}


def test_an_operator_is_told_before_a_journal_fills_its_volume(alarms):
    for index in range(topology.SEGMENT_STORES.stores):
        properties = alarms[f"headrace-store-{index}-volume"].properties
        assert properties["MetricName"] == "EBSFilesystemUtilized"
        assert properties["ComparisonOperator"] == "GreaterThanThreshold"
        assert 0 < properties["Threshold"] < topology.SEGMENT_STORES.volume_gib


def test_there_is_one_dashboard(assembly):
    assert assembly.only("AWS::CloudWatch::Dashboard").properties["DashboardName"] == "headrace"


def test_an_address_is_subscribed_when_one_is_given(assembly, smallest_assembly):
    assert assembly.resources("AWS::SNS::Subscription") == []
    subscription = smallest_assembly.only("AWS::SNS::Subscription").properties
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "a@b.example")

"""Every queue, function and store has alarms, and every alarm reaches somebody."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from cdk_assembly import Assembly, Resource

from functions.observability import NAMESPACE
from headrace import topology
from infra.constructs.deployed_resources import STORE_LOG_GROUP_NAME
from infra.constructs.log_alarms import LOG_ALARMS
from segmentstore_fargate import task_protection

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


OF_REPORTS = ("metrics-missing", "flush-lag", "throttling", "cache-unflushed", "connections")
WINDOWS = {
    *("headrace-ack-budget-fast-1h", "headrace-ack-budget-fast-5m", "headrace-ack-budget-slow-6h"),
    *("headrace-ack-budget-slow-30m", "headrace-api-5xx-1h", "headrace-api-5xx-5m"),
}
"""Parts of composite alarms."""


@pytest.fixture
def alarms(assembly: Assembly):
    return assembly.named("AWS::CloudWatch::Alarm", "AlarmName")


def test_there_is_an_alarm_for_everything_that_can_go_wrong(alarms):
    expected = {f"headrace-{each.name}-{what}" for each in topology.FUNCTIONS for what in ("errors", "throttles")}
    for queue in topology.QUEUES:
        name = queue.name.removesuffix(".fifo")
        expected |= {f"{name}-dead-letters", f"{name}-age"}
    for index in range(topology.SEGMENT_STORES.stores):
        expected |= {f"headrace-store-{index}-{what}" for what in ("running", "volume", "memory", *OF_REPORTS)}
    expected |= {"headrace-stores-lost", "headrace-ticks-stopped", "headrace-journal-failed"}
    expected |= {"headrace-store-restarting", "headrace-crc-errors", "headrace-disk-stall"}
    expected |= {"headrace-storage-refused", "headrace-segment-quarantined", "headrace-owner-changes"}
    expected |= {"headrace-log-lag", "headrace-ack-p99", "headrace-untiered-age"}
    expected |= {"headrace-metadata-throttles", "headrace-api-faults"}
    expected |= {f"headrace-log-{what}" for what in ("blocked", "under-replicated", "single-copy")}
    expected |= {"headrace-store-isolated", "headrace-journal-damaged", "headrace-task-protected"}
    expected |= {"headrace-replication-gate", "headrace-replication-gate-errors"}
    expected |= {"headrace-audit-lines-lost", "headrace-audit-lines-not-sent"}
    expected |= {"headrace-canary-failed", "headrace-s3-errors", "headrace-api-latency", *WINDOWS}
    assert set(alarms) == expected


def test_settings_add_alarms(assembly: Assembly, default_assembly: Assembly):
    """Tokens and TLS have their own, and a deployment without the canary has none on it."""
    names = [set(each.named("AWS::CloudWatch::Alarm", "AlarmName")) for each in (assembly, default_assembly)]
    zones = range(topology.SEGMENT_STORES.stores)
    assert names[0] < names[1]
    assert names[1] - names[0] == {
        *("headrace-token-keys-errors", "headrace-token-failures"),
        *("headrace-certificates-errors", "headrace-certificates-stopped", "headrace-authority-ends-soon"),
        *(f"headrace-store-{zone}-certificate-expiry" for zone in zones),
    }


NO_CANARY = """
from infra.constructs.declared_alarms import declared_alarms
from infra.settings import Settings
names = [{each.name for each in declared_alarms(Settings(canary=canary))} for canary in (True, False)]
print(*(names[0] - names[1]), len(names[1] - names[0]))
"""


def test_without_the_canary_no_alarm_waits_for_it(run_python):
    finished = run_python(NO_CANARY)
    assert finished.stdout.split() == ["headrace-canary-failed", "0"], finished.stderr


def test_a_canary_that_fails_twice_in_three_minutes_rings(alarms):
    properties = alarms["headrace-canary-failed"].properties
    assert (properties["Namespace"], properties["MetricName"]) == (NAMESPACE, "CanaryFailures")
    assert properties["Dimensions"] == [{"Name": "Service", "Value": "headrace-canary"}]
    assert (properties["DatapointsToAlarm"], properties["EvaluationPeriods"]) == (2, 3)
    assert properties["TreatMissingData"] == "breaching", "a canary that does not run"


@pytest.mark.parametrize(
    ("suffix", "metric", "comparison", "threshold", "minutes", "missing"),
    [
        ("flush-lag", "FlushLagSeconds", "GreaterThanThreshold", 60, 5, "notBreaching"),
        ("throttling", "ThrottledSeconds", "GreaterThanThreshold", 10, 10, "notBreaching"),
        ("cache-unflushed", "UnflushedRatio", "GreaterThanThreshold", 70, 5, "notBreaching"),
        ("connections", "ConnectionsUsed", "GreaterThanThreshold", 80, 5, "notBreaching"),
        ("certificate-expiry", "CertificateDaysLeft", "LessThanThreshold", 7, 1, "notBreaching"),
        ("metrics-missing", "Ready", "LessThanThreshold", 1, 10, "breaching"),
    ],
)
def test_what_stores_report_rings(default_assembly: Assembly, suffix, metric, comparison, threshold, minutes, missing):
    alarms = default_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    for zone in range(topology.SEGMENT_STORES.stores):
        properties = alarms[f"headrace-store-{zone}-{suffix}"].properties
        assert (properties["Namespace"], properties["MetricName"]) == (NAMESPACE, metric)
        assert properties["Dimensions"] == [{"Name": "Service", "Value": f"headrace-store-{zone}"}]
        assert (properties["ComparisonOperator"], properties["Threshold"]) == (comparison, threshold)
        assert (properties["EvaluationPeriods"], properties["TreatMissingData"]) == (minutes, missing)


def test_a_deployment_that_is_rolled_back_is_mailed(assembly: Assembly, as_text: Callable[[object], str]):
    rule = assembly.named("AWS::Events::Rule", "Name")["headrace-deployment-rolled-back"].properties
    pattern = rule["EventPattern"]
    assert pattern == {
        "source": ["aws.ecs"],
        "detail-type": ["ECS Deployment State Change"],
        "detail": {"eventName": ["SERVICE_DEPLOYMENT_FAILED"]},
        "resources": [{"prefix": ANY}],
    }
    assert as_text(pattern["resources"][0]["prefix"]).endswith(":service/headrace/")


def test_the_page_tells_its_end_and_reads_the_topic(assembly: Assembly, as_text: Callable[[object], str]):
    composites = assembly.named("AWS::CloudWatch::CompositeAlarm", "AlarmName")
    page = composites["headrace-page"].properties
    assert page["OKActions"] == page["AlarmActions"]
    (topic,) = page["AlarmActions"]
    assert as_text(topic).endswith(":headrace-alarms")
    assert "AlarmActions" not in composites["headrace-page-stores"].properties
    for name in ("headrace-ack-budget-fast", "headrace-ack-budget-slow", "headrace-api-5xx"):
        assert composites[name].properties["AlarmActions"]


@pytest.mark.parametrize("name", ["assembly", "smallest_assembly", "external_assembly"])
def test_composite_alarms_change_with_their_parts(name, request: pytest.FixtureRequest):
    """CloudWatch deletes no part of a composite alarm: what settings remove must be parts in the same stack."""
    either: Assembly = request.getfixturevalue(name)
    for composite in either.named("AWS::CloudWatch::CompositeAlarm", "AlarmName").values():
        rule = composite.properties["AlarmRule"]
        if composite.properties["AlarmName"] == "headrace-page":
            text = str(rule)
            assert "headrace-page-stores" in text
            assert "headrace-api-5xx" in text
            manifest = json.loads((either.directory / "manifest.json").read_text())["artifacts"]
            assert "HeadraceControllerApi" in manifest[composite.stack]["dependencies"]
            continue
        references = [part for part in rule["Fn::Join"][1] if isinstance(part, dict)]
        assert references
        assert all(either.get(composite.stack, part).type.endswith("Alarm") for part in references)


def test_one_copy_has_no_alarms_about_copies(smallest_assembly: Assembly):
    names = set(smallest_assembly.named("AWS::CloudWatch::Alarm", "AlarmName"))
    assert {"headrace-containers-given-up", "headrace-journal-failed"} <= names
    of_copies = ("headrace-log-", "replication", "protected")
    assert not [name for name in names for part in of_copies if part in name]


@pytest.mark.parametrize(
    ("name", "function", "metric", "minutes"),
    [
        ("headrace-log-blocked", "ticks", "LogsBlocked", 1),
        ("headrace-log-under-replicated", "ticks", "LogsUnderReplicated", 10),
        ("headrace-log-single-copy", "ticks", "LogsWithOneCopy", 1),
        ("headrace-store-isolated", "ticks", "StoresIsolated", 3),
        ("headrace-replication-gate", "replication-gate", "GatesWaiting", 15),
    ],
)
def test_copies_that_are_missing_for_long_ring(alarms, name, function, metric, minutes):
    properties = alarms[name].properties
    assert (properties["Namespace"], properties["MetricName"], properties["Statistic"]) == (
        NAMESPACE,
        metric,
        "Minimum",
    )
    assert properties["Dimensions"] == [{"Name": "service", "Value": function}]
    assert (properties["ComparisonOperator"], properties["Threshold"]) == ("GreaterThanThreshold", 0)
    assert (properties["Period"], properties["EvaluationPeriods"]) == (60, minutes)
    assert properties["TreatMissingData"] == "notBreaching", "nothing is counted while all is well"


def test_a_task_that_is_protected_for_long_rings(alarms):
    """Each minute of the alarm needs a line. A look at the logs and at the agent takes some seconds."""
    properties = alarms["headrace-task-protected"].properties
    assert (properties["Period"], properties["EvaluationPeriods"]) == (60, 15)
    assert properties.get("DatapointsToAlarm", 15) == 15
    assert (properties["ComparisonOperator"], properties["Threshold"]) == ("GreaterThanThreshold", 0)
    assert properties["TreatMissingData"] == "notBreaching", "no line is written while no log needs the store"
    assert properties["Period"] > task_protection.RENEW_EVERY_S + 2 * task_protection.AGENT_TIMEOUT_S


LINE = re.compile(r'"event=(\w+) "')


def test_lines_of_the_log_that_ring_are_lines_that_stores_write(assembly: Assembly, alarms):
    folders = (ROOT / "headrace" / "segmentstore", ROOT / "headrace" / "adapters", ROOT / "segmentstore_fargate")
    written = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    counting = assembly.resources("AWS::Logs::MetricFilter")
    for service in assembly.resources("AWS::ECS::Service"):
        assert {each.logical_id for each in counting} <= set(service.attributes["DependsOn"]), "lines of its first task"
    filters = [each.properties for each in counting]
    assert len(filters) == len(LOG_ALARMS)
    for each in filters:
        group = assembly.get("HeadraceSegmentStores", each["LogGroupName"]).properties
        assert group["LogGroupName"] == STORE_LOG_GROUP_NAME
        (transformation,) = each["MetricTransformations"]
        matched = LINE.fullmatch(each["FilterPattern"])
        assert matched is not None
        assert f'"event={matched[1]} ' in written
        (watching,) = [a for a in alarms.values() if a.properties.get("MetricName") == transformation["MetricName"]]
        assert watching.properties["Namespace"] == transformation["MetricNamespace"] == NAMESPACE
        assert watching.properties["Statistic"] == "Sum"


def test_the_retirement_of_a_task_is_told(assembly: Assembly, smallest_assembly: Assembly):
    for each in (assembly, smallest_assembly):
        rule = each.named("AWS::Events::Rule", "Name")["headrace-task-retirement"].properties
        assert rule["EventPattern"] == {
            "source": ["aws.health"],
            "detail-type": ["AWS Health Event"],
            "detail": {"service": ["ECS"], "eventTypeCode": ["AWS_ECS_TASK_PATCHING_RETIREMENT"]},
        }
        assert [target["Arn"] for target in rule["Targets"]] == [{"Ref": each.only("AWS::SNS::Topic").logical_id}]


def test_the_cluster_is_watched_by_what_the_functions_count(smallest_assembly: Assembly):
    alarms = smallest_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    lost, given_up = (alarms[f"headrace-{name}"].properties for name in ("stores-lost", "containers-given-up"))
    assert (lost["Namespace"], lost["MetricName"], lost["EvaluationPeriods"]) == (NAMESPACE, "StoresLost", 3)
    assert (given_up["ComparisonOperator"], given_up["Threshold"]) == ("GreaterThanThreshold", 0)
    assert {each["MetricStat"]["Stat"] for each in given_up["Metrics"] if "MetricStat" in each} == {"Sum"}
    assert lost["TreatMissingData"] == given_up["TreatMissingData"] == "notBreaching"


def test_alarms_watch_resources_that_are_deployed(assembly: Assembly, alarms, as_text: Callable[[object], str]):
    """A metric of AWS with a misspelt name has no data, and an alarm on it never rings."""
    names = {
        "FunctionName": set(assembly.named("AWS::Lambda::Function", "FunctionName")),
        "QueueName": set(assembly.named("AWS::SQS::Queue", "QueueName")),
        "TableName": set(assembly.named("AWS::DynamoDB::Table", "TableName")),
        "ClusterName": set(assembly.named("AWS::ECS::Cluster", "ClusterName")),
        "ServiceName": set(assembly.named("AWS::ECS::Service", "ServiceName")),
    }
    dimensions_of = {
        "AWS/Lambda": {"FunctionName"},
        "AWS/SQS": {"QueueName"},
        "AWS/DynamoDB": {"TableName"},
        "AWS/ApiGateway": {"ApiId"},
        "AWS/ECS": {"ClusterName", "ServiceName"},
        "ECS/ContainerInsights": {"ClusterName", "ServiceName"},
    }
    metrics = [metric for alarm in alarms.values() for metric in _metrics(alarm) if metric["Namespace"] != NAMESPACE]
    assert {metric["Namespace"] for metric in metrics} == set(dimensions_of)
    for metric in metrics:
        dimensions = {each["Name"]: as_text(each["Value"]) for each in metric["Dimensions"]}
        assert set(dimensions) == dimensions_of[metric["Namespace"]]
        api = dimensions.pop("ApiId", None)
        assert api in (None, f"<{assembly.only('AWS::ApiGatewayV2::Api').logical_id}>")
        assert all(value in names[name] for name, value in dimensions.items()), dimensions


def _metrics(alarm) -> list[dict[str, Any]]:
    """The metrics of an alarm, whether it has one or computes with several."""
    if "Metrics" in alarm.properties:
        return [metric["MetricStat"]["Metric"] for metric in alarm.properties["Metrics"] if "MetricStat" in metric]
    return [alarm.properties]


def test_ticks_that_stop_ring(alarms):
    properties = alarms["headrace-ticks-stopped"].properties
    assert (properties["Namespace"], properties["MetricName"]) == ("AWS/Lambda", "Invocations")
    assert properties["Dimensions"] == [{"Name": "FunctionName", "Value": "headrace-ticks"}]
    assert (properties["ComparisonOperator"], properties["Threshold"]) == ("LessThanThreshold", 1)
    assert properties["TreatMissingData"] == "breaching", "a function that is never called reports nothing"


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        *[(f"headrace-{each.name}-throttles", {"Throttles"}) for each in topology.FUNCTIONS],
        ("headrace-metadata-throttles", {"ReadThrottleEvents", "WriteThrottleEvents"}),
        ("headrace-api-faults", {"5xx"}),
        ("headrace-api-latency", {"Latency"}),
        ("headrace-s3-errors", {"StorageErrors"}),
    ],
)
def test_what_is_throttled_or_fails_rings(alarms, name, metrics):
    assert {metric["MetricName"] for metric in _metrics(alarms[name])} == metrics
    assert alarms[name].properties["ComparisonOperator"] == "GreaterThanThreshold"


def test_failed_runs_of_the_spark_job_ring(assembly: Assembly, smallest_assembly: Assembly):
    rule = assembly.named("AWS::Events::Rule", "Name")["headrace-spark-job-failed"].properties
    assert rule["EventPattern"] == {
        "source": ["aws.glue"],
        "detail-type": ["Glue Job State Change"],
        "detail": {
            "jobName": [assembly.only("AWS::Glue::Job").properties["Name"]],
            "state": ["ERROR", "FAILED", "TIMEOUT"],
        },
    }
    topic = assembly.only("AWS::SNS::Topic").logical_id
    assert [target["Arn"] for target in rule["Targets"]] == [{"Ref": topic}]
    (policy,) = assembly.resources("AWS::SNS::TopicPolicy")
    publishers = [
        (statement["Principal"], statement["Action"], statement["Resource"])
        for statement in policy.properties["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Allow"
    ]
    assert ({"Service": "events.amazonaws.com"}, "sns:Publish", {"Ref": topic}) in publishers
    assert "headrace-spark-job-failed" not in smallest_assembly.named("AWS::Events::Rule", "Name")


def test_every_alarm_goes_to_the_topic(assembly: Assembly, alarms, as_text: Callable[[object], str]):
    topic = assembly.only("AWS::SNS::Topic")
    assert {name for name, alarm in alarms.items() if "AlarmActions" not in alarm.properties} == WINDOWS
    for alarm in (alarm for name, alarm in alarms.items() if name not in WINDOWS):
        (action,) = alarm.properties["AlarmActions"]
        if alarm.stack == topic.stack:
            assert assembly.get(alarm.stack, action).logical_id == topic.logical_id
        else:
            assert as_text(action).endswith(f":sns:<AWS::Region>:<AWS::AccountId>:{topic.properties['TopicName']}")


PUBLISHERS = {
    "AWS::CloudWatch::Alarm": "cloudwatch.amazonaws.com",
    "AWS::CloudWatch::CompositeAlarm": "cloudwatch.amazonaws.com",
    "AWS::Events::Rule": "events.amazonaws.com",
}


@pytest.mark.parametrize("name", ["assembly", "smallest_assembly"])
def test_everything_that_publishes_to_the_topic_may(name, request: pytest.FixtureRequest):
    """The topic has a policy of its own, so nothing is allowed by default."""
    either: Assembly = request.getfixturevalue(name)
    topic = {"Ref": either.only("AWS::SNS::Topic").logical_id}
    kinds = {each.type for each in either.resources() if _publishes_to(each, topic)}
    assert kinds == set(PUBLISHERS)
    statements = either.only("AWS::SNS::TopicPolicy").properties["PolicyDocument"]["Statement"]
    allowed = {
        each["Principal"]["Service"]
        for each in statements
        if (each["Effect"], each["Action"], each["Resource"]) == ("Allow", "sns:Publish", topic)
        and each.get("Condition", OWN_ACCOUNT) == OWN_ACCOUNT
    }
    assert {PUBLISHERS[kind] for kind in kinds} <= allowed
    denied = [each["Condition"] for each in statements if each["Effect"] == "Deny"]
    assert denied == [{"Bool": {"aws:SecureTransport": "false"}}]


OWN_ACCOUNT = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def _publishes_to(resource: Resource, topic: dict[str, str]) -> bool:
    names = [*resource.properties.get("AlarmActions", ())]
    if resource.type == "AWS::Events::Rule":
        names += [target["Arn"] for target in resource.properties["Targets"]]
    return topic in names


@pytest.mark.parametrize("declared", topology.QUEUES, ids=lambda declared: declared.name)
def test_one_dead_letter_is_enough(alarms, declared, as_text: Callable[[object], str]):
    properties = alarms[f"{declared.name.removesuffix('.fifo')}-dead-letters"].properties
    assert (properties["ComparisonOperator"], properties["Threshold"]) == ("GreaterThanThreshold", 0)
    assert [metric["Expression"] for metric in properties["Metrics"] if "Expression" in metric] == [
        "FILL(waiting, 0) + FILL(received, 0)"
    ]
    metrics = [metric["MetricStat"]["Metric"] for metric in properties["Metrics"] if "MetricStat" in metric]
    assert {metric["MetricName"] for metric in metrics} == {
        "ApproximateNumberOfMessagesVisible",
        "NumberOfMessagesReceived",
    }
    for (dimension,) in (metric["Dimensions"] for metric in metrics):
        assert as_text(dimension["Value"]) == declared.dead_letter_name


def test_a_store_that_reports_nothing_is_not_running(alarms):
    for index in range(topology.SEGMENT_STORES.stores):
        properties = alarms[f"headrace-store-{index}-running"].properties
        assert properties["TreatMissingData"] == "breaching"
        assert {d["Name"]: d["Value"] for d in properties["Dimensions"]}.keys() == {"ClusterName", "ServiceName"}


def test_an_operator_is_told_before_a_journal_fills_its_volume(alarms):
    for index in range(topology.SEGMENT_STORES.stores):
        properties = alarms[f"headrace-store-{index}-volume"].properties
        assert (properties["Namespace"], properties["MetricName"]) == ("AWS/ECS", "EBSFilesystemUtilization")
        assert {each["Name"] for each in properties["Dimensions"]} == {"ClusterName", "ServiceName"}
        assert properties["ComparisonOperator"] == "GreaterThanThreshold"
        assert properties["Threshold"] == 80, "per cent of the file system"


def test_there_is_one_dashboard(assembly: Assembly):
    assert assembly.only("AWS::CloudWatch::Dashboard").properties["DashboardName"] == "headrace"


def test_saved_queries_read_logs_that_exist(assembly: Assembly):
    groups = set(assembly.named("AWS::Logs::LogGroup", "LogGroupName"))
    queries = assembly.named("AWS::Logs::QueryDefinition", "Name")
    assert queries
    documented = (ROOT / "docs/operating/log-lines.md").read_text()
    for name, query in queries.items():
        assert set(query.properties["LogGroupNames"]) <= groups
        assert f"| `{name}` |" in documented
        for event in re.findall(r'event = "(\w+)"', query.properties["QueryString"]):
            assert f"| `{event}` |" in documented


def test_an_address_is_subscribed_when_one_is_given(assembly: Assembly, smallest_assembly: Assembly):
    assert assembly.resources("AWS::SNS::Subscription") == []
    subscription = smallest_assembly.only("AWS::SNS::Subscription").properties
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "a@b.example")

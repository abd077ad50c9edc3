"""Metrics of the deployed resources, found by the names of the topology.

A construct of another stack would bring an export with it, which AWS refuses to remove while it is imported: a function
that is taken out of the topology would fail the deployment. Names are fixed, so no stack has to be asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from headrace import topology
from headrace.embedded_metrics import DIMENSION, NAMESPACE
from infra.constructs.deployed_resources import BRIDGE_SERVICE_NAME, CLUSTER_NAME, function_name, service_name

PERIOD = cdk.Duration.minutes(1)
METRICS_NAMESPACE = NAMESPACE
"""What functions/observability.py and metric filters count under, too."""


def function_metric(
    function: topology.Function, name: str, statistic: str = "Sum", period: cdk.Duration | None = None
) -> cloudwatch.Metric:
    """A metric of Lambda about one function."""
    return _metric("AWS/Lambda", name, {"FunctionName": function_name(function)}, statistic, period)


def counted_metric(
    function: topology.Function, name: str, statistic: str = "Sum", period: cdk.Duration | None = None
) -> cloudwatch.Metric:
    """What the code of one function counts. It adds the dimension `service` to every metric, and only that to these."""
    return _metric(METRICS_NAMESPACE, name, {"service": function.name}, statistic, period)


def counted_by_any(functions: Iterable[topology.Function], name: str) -> cloudwatch.MathExpression:
    """The sum of what several functions count under one name, each in a metric of its own."""
    counted = {f"by_{function.name.replace('-', '_')}": counted_metric(function, name) for function in functions}
    return cloudwatch.MathExpression(
        expression=" + ".join(f"FILL({id_}, 0)" for id_ in counted),
        using_metrics=dict(counted),
        period=PERIOD,
        label=name,
    )


def reported_metric(service: str, name: str, statistic: str, period: cdk.Duration | None = None) -> cloudwatch.Metric:
    """What the processes of an ECS service, or the canary, report each minute (headrace/embedded_metrics.py)."""
    return _metric(METRICS_NAMESPACE, name, {DIMENSION: service}, statistic, period)


def line_metric(name: str) -> cloudwatch.Metric:
    """The number of lines that a metric filter counts in the log of the stores."""
    return _metric(METRICS_NAMESPACE, name, {}, "Sum")


def queue_metric(queue: topology.Queue, name: str, statistic: str) -> cloudwatch.Metric:
    """A metric of SQS about one queue."""
    return _metric("AWS/SQS", name, {"QueueName": queue.name}, statistic)


def table_metric(name: str, period: cdk.Duration | None = None) -> cloudwatch.Metric:
    """The sum of a metric of DynamoDB about the metadata table."""
    return _metric("AWS/DynamoDB", name, {"TableName": topology.METADATA_TABLE.name}, "Sum", period)


def table_latency(operation: str, statistic: str) -> cloudwatch.Metric:
    """The time that DynamoDB took for successful requests of one operation on the metadata table."""
    dimensions = {"TableName": topology.METADATA_TABLE.name, "Operation": operation}
    return _metric("AWS/DynamoDB", "SuccessfulRequestLatency", dimensions, statistic)


def account_metric(name: str, statistic: str) -> cloudwatch.Metric:
    """A metric of Lambda about all functions of the account in this Region."""
    return _metric("AWS/Lambda", name, {}, statistic)


def store_metric(index: int, name: str, statistic: str, *, namespace: str = "AWS/ECS") -> cloudwatch.Metric:
    """A metric of ECS about the service of one segment store."""
    return _metric(namespace, name, {"ClusterName": CLUSTER_NAME, "ServiceName": service_name(index)}, statistic)


def bridge_metric(
    name: str, statistic: str, *, namespace: str = "AWS/ECS", service: str = BRIDGE_SERVICE_NAME
) -> cloudwatch.Metric:
    """A metric of ECS about a service of the gRPC bridge."""
    dimensions = {"ClusterName": CLUSTER_NAME, "ServiceName": service}
    return _metric(namespace, name, dimensions, statistic, None)


def store_insight(index: int, name: str, statistic: str) -> cloudwatch.Metric:
    """A metric of Container Insights about the service of one segment store."""
    return store_metric(index, name, statistic, namespace="ECS/ContainerInsights")


def api_metric(api_id: str, name: str, statistic: str = "Sum", period: cdk.Duration | None = None) -> cloudwatch.Metric:
    """A metric of API Gateway. Its id is the one name that AWS chooses."""
    return _metric("AWS/ApiGateway", name, {"ApiId": api_id}, statistic, period)


def _metric(
    namespace: str, name: str, dimensions: dict[str, str], statistic: str, period: cdk.Duration | None = None
) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=namespace,
        metric_name=name,
        dimensions_map=dimensions,
        statistic=statistic,
        period=period or PERIOD,
    )

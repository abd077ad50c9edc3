"""The dashboard stack: graphs of the API, the functions, the queues and the stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from headrace import topology
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.named_metrics import api_metric, function_metric, queue_metric, store_metric
from infra.settings import Settings


class DashboardStack(cdk.Stack):
    """One dashboard. It needs the id of the API, so it is deployed last."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: dashboard", **kwargs)
        api_id, stores = DeployedResources.seen_from(self).controller_api_id, range(settings.zone_count)
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name="headrace")
        dashboard.add_widgets(
            _graph("API calls and errors", [api_metric(api_id, name) for name in ("Count", "4xx", "5xx")]),
            _graph("API latency, ms", [api_metric(api_id, "Latency", percentile) for percentile in ("p50", "p99")]),
            _graph("Function errors", [function_metric(each, "Errors") for each in topology.FUNCTIONS]),
        )
        dashboard.add_widgets(
            _graph(
                "Function duration p99, ms", [function_metric(each, "Duration", "p99") for each in topology.FUNCTIONS]
            ),
            _graph(
                "Messages waiting",
                [queue_metric(each, "ApproximateNumberOfMessagesVisible", "Maximum") for each in topology.QUEUES],
            ),
            _graph(
                "Dead letters",
                [queue_metric(each.dead_letters, "NumberOfMessagesReceived", "Sum") for each in topology.QUEUES],
            ),
        )
        dashboard.add_widgets(
            _graph("Store CPU, %", [store_metric(index, "CPUUtilization", "Average") for index in stores]),
            _graph("Store memory, %", [store_metric(index, "MemoryUtilization", "Average") for index in stores]),
            _graph(
                "Journal volume used, %",
                [store_metric(index, "EBSFilesystemUtilization", "Maximum") for index in stores],
            ),
        )


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8, height=6)

"""The dashboard stack: graphs of the API, the functions, the queues and the stores, and saved queries of their logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_logs as logs
from constructs import Construct

from headrace import topology
from infra.constructs.deployed_resources import STORE_LOG_GROUP_NAME, DeployedResources, log_group_name
from infra.constructs.named_metrics import api_metric, function_metric, queue_metric, store_metric
from infra.settings import Settings

_FUNCTION_LOG_GROUPS = tuple(log_group_name(each) for each in topology.FUNCTIONS)


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """A query of CloudWatch Logs Insights over some log groups, for the list of saved queries."""

    name: str
    log_groups: tuple[str, ...]
    text: str


SAVED_QUERIES = (
    SavedQuery(
        "headrace/one operation",
        (*_FUNCTION_LOG_GROUPS, topology.AUDIT_LOG.name),
        """\
fields @timestamp, service, action, resource, step, message, outcome, code
| filter correlationId = "PASTE THE ID"
| sort @timestamp asc""",
    ),
    SavedQuery(
        "headrace/refused callers",
        (topology.AUDIT_LOG.name,),
        """\
filter outcome = "refused"
| stats count() as refusals, latest(time) as last by principal, action, code
| sort refusals desc""",
    ),
    SavedQuery(
        "headrace/slow acknowledgements",
        (STORE_LOG_GROUP_NAME,),
        """\
filter event = "acknowledgements_slow"
| stats sum(details.slow) as slow, sum(details.count) as acknowledged by store, bin(5m)""",
    ),
    SavedQuery(
        "headrace/a container",
        (STORE_LOG_GROUP_NAME,),
        """\
fields @timestamp, store, level, message
| filter details.container = 0
| sort @timestamp asc""",
    ),
)
"""What operators ask most. The fields are those of `docs/operating/log-lines.md` and of audit lines."""


class DashboardStack(cdk.Stack):
    """One dashboard, and saved queries. It needs the id of the API, so it is deployed last."""

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
        for query in SAVED_QUERIES:
            logs.CfnQueryDefinition(
                self,
                "Query-" + query.name.rpartition("/")[2].replace(" ", "-"),
                name=query.name,
                log_group_names=list(query.log_groups),
                query_string=query.text,
            )


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8, height=6)

"""The dashboard stack: graphs in rows, the alarm that wakes a person, and saved queries of logs.

Each row answers a question: are the objectives kept, how much is there to do, what fails, what is slow, what is nearly
full, what waits. docs/operating/metrics.md explains the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_logs as logs
from constructs import Construct

from headrace import topology
from infra.constructs.alarms import PAGE, PAGE_BEFORE_API, add_composite, alarms_seen_from, topic_seen_from
from infra.constructs.burn_rates import (
    acks_burn_rates,
    acks_objectives,
    canary_objective,
    control_plane_burn_rate,
    control_plane_objective,
)
from infra.constructs.declared_alarms import TICKS, declared_alarms
from infra.constructs.deployed_resources import (
    CANARY_NAME,
    STORE_LOG_GROUP_NAME,
    DeployedResources,
    log_group_name,
    service_name,
)
from infra.constructs.named_metrics import (
    account_metric,
    api_metric,
    counted_metric,
    function_metric,
    queue_metric,
    reported_metric,
    store_metric,
    table_latency,
    table_metric,
)
from infra.constructs.store_panels import CPU_LINE_PERCENT, ROWS, STORE_PANELS, Row
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


KINDS = ("Read", "Write")
TABLE_OPERATIONS = ("GetItem", "Query", "PutItem", "TransactWriteItems")


class DashboardStack(cdk.Stack):
    """One dashboard, saved queries and the alarm that wakes a person. It needs the API, so it is deployed last."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: dashboard", **kwargs)
        self._settings = settings
        self._api_id = DeployedResources.seen_from(self).controller_api_id
        self._add_page()
        dashboard = cloudwatch.Dashboard(
            self, "Dashboard", dashboard_name="headrace", default_interval=cdk.Duration.hours(6)
        )
        more: Mapping[Row, Sequence[cloudwatch.IWidget]] = {
            "objectives": self._objectives(),
            "traffic": self._traffic(),
            "errors": self._errors(),
            "latency": self._latency(),
            "saturation": self._saturation(),
            "background": self._background(),
        }
        for row in ROWS:
            dashboard.add_widgets(cloudwatch.TextWidget(markdown=f"## {row.capitalize()}", width=24, height=1))
            dashboard.add_widgets(*more[row], *self._store_graphs(row))
        for query in SAVED_QUERIES:
            logs.CfnQueryDefinition(
                self,
                "Query-" + query.name.rpartition("/")[2].replace(" ", "-"),
                name=query.name,
                log_group_names=list(query.log_groups),
                query_string=query.text,
            )

    def _add_page(self) -> None:
        """The alarm for a pager. Its parts always exist, so that no setting removes one before this stack changes."""
        names = (PAGE_BEFORE_API, control_plane_burn_rate(self._api_id).name)
        parts = alarms_seen_from(self, "Part", names)
        topic = topic_seen_from(self)
        page = add_composite(
            self, PAGE, "An alarm that wakes a person is raised", cloudwatch.AlarmRule.any_of(*parts), topic
        )
        page.add_ok_action(actions.SnsAction(topic))

    def _objectives(self) -> list[cloudwatch.IWidget]:
        zones, api_id = self._settings.zone_count, self._api_id
        acks, control_plane = acks_objectives(zones), control_plane_objective(api_id)
        budgets = [
            *(each.budget_left(f"acknowledgements within 50 ms{each.suffix}") for each in acks),
            control_plane.budget_left("calls of the API"),
        ]
        one_hour = cdk.Duration.hours(1)
        rates = [
            *(each.burn_rate(one_hour, f"acknowledgements{each.suffix}") for each in acks),
            control_plane.burn_rate(one_hour, "calls of the API"),
        ]
        canary: list[cloudwatch.IWidget] = []
        if self._settings.canary:
            budgets.append(canary_objective().budget_left("events of the canary"))
            delays = [reported_metric(CANARY_NAME, "CanaryDelayMs", statistic) for statistic in ("p50", "p99")]
            canary.append(_graph("Delay from write to read, of the canary, ms", delays, line=250))
        return [
            cloudwatch.SingleValueWidget(
                title="Error budget left in the time range, %",
                metrics=budgets,
                set_period_to_time_range=True,
                width=8,
                height=6,
            ),
            _graph("Burn rate over an hour", rates, line=14.4),
            self._alarm_states(),
            *canary,
        ]

    def _alarm_states(self) -> cloudwatch.IWidget:
        """Those that wake a person, and the objectives."""
        burn_rates = [*acks_burn_rates(self._settings.zone_count), control_plane_burn_rate(self._api_id)]
        names = [each.name for each in burn_rates]
        names += [each.name for each in declared_alarms(self._settings) if each.severity == "page"]
        alarms = alarms_seen_from(self, "State", names)
        return cloudwatch.AlarmStatusWidget(title="Alarms that wake a person", alarms=alarms, width=8, height=6)

    def _traffic(self) -> list[cloudwatch.IWidget]:
        units = [table_metric(f"Consumed{kind}CapacityUnits") for kind in KINDS]
        tokens = function_metric(topology.function("delegation-tokens"), "Invocations")
        return [
            _graph("API calls and errors", [api_metric(self._api_id, name) for name in ("Count", "4xx", "5xx")]),
            _graph("Calls for delegation tokens", [tokens]),
            _graph("DynamoDB, units", units),
        ]

    def _errors(self) -> list[cloudwatch.IWidget]:
        return [
            _graph("Function errors", [function_metric(each, "Errors") for each in topology.FUNCTIONS]),
            _graph("Function throttles", [function_metric(each, "Throttles") for each in topology.FUNCTIONS]),
            _graph(
                "Dead letters",
                [queue_metric(each.dead_letters, "NumberOfMessagesReceived", "Sum") for each in topology.QUEUES],
            ),
            _graph(
                "DynamoDB, throttled requests", [table_metric(f"{kind}ThrottleEvents") for kind in ("Read", "Write")]
            ),
        ]

    def _latency(self) -> list[cloudwatch.IWidget]:
        latencies = [api_metric(self._api_id, "Latency", percentile) for percentile in ("p50", "p99")]
        return [
            _graph("API latency, ms", latencies, line=1_500),
            _graph(
                "Function duration p99, ms", [function_metric(each, "Duration", "p99") for each in topology.FUNCTIONS]
            ),
            _graph("DynamoDB latency p99, ms", [table_latency(operation, "p99") for operation in TABLE_OPERATIONS]),
        ]

    def _saturation(self) -> list[cloudwatch.IWidget]:
        of_stores = {
            "Store CPU, %": ("CPUUtilization", "Average", CPU_LINE_PERCENT),
            "Store memory, %": ("MemoryUtilization", "Average", 90),
            "Journal volume used, %": ("EBSFilesystemUtilization", "Maximum", 80),
        }
        zones = range(self._settings.zone_count)
        return [
            *(
                _graph(title, [store_metric(zone, name, statistic) for zone in zones], line=line)
                for title, (name, statistic, line) in of_stores.items()
            ),
            _graph(
                "Lambda executions at once, of the account",
                [account_metric("ConcurrentExecutions", "Maximum")],
                line=self._settings.account_concurrency,
            ),
        ]

    def _background(self) -> list[cloudwatch.IWidget]:
        watched = ["StoresLost"]
        if self._settings.is_replicated:
            watched += ["LogsBlocked", "LogsUnderReplicated", "LogsWithOneCopy", "StoresIsolated"]
        ages, waiting, handled = (
            [queue_metric(queue, name, "Maximum") for queue in topology.QUEUES]
            for name in (
                "ApproximateAgeOfOldestMessage",
                "ApproximateNumberOfMessagesVisible",
                "ApproximateNumberOfMessagesNotVisible",
            )
        )
        return [
            _graph("Age of the oldest message, s", ages, line=300),
            _graph("Messages waiting", waiting),
            _graph("Messages in flight", handled),
            _graph("Stores and logs in trouble", [counted_metric(TICKS, name, "Maximum") for name in watched]),
        ]

    def _store_graphs(self, row: Row) -> list[cloudwatch.IWidget]:
        zones = range(self._settings.zone_count)
        return [
            _graph(
                f"{panel.title}, {UNITS_OF_A_MINUTE.get(panel.unit, panel.unit)}".removesuffix(", none"),
                [reported_metric(service_name(zone), name, stat) for zone in zones for name, stat in panel.reports],
                line=panel.line,
            )
            for panel in STORE_PANELS
            if panel.row == row and panel.reports and not (self._is_without(panel.reports))
        ]

    def _is_without(self, reports: tuple[tuple[str, str], ...]) -> bool:
        """Whether the deployment has nothing to show: no certificates."""
        return not self._settings.has_certificates and reports[0][0] == "CertificateDaysLeft"


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric], line: float | None = None) -> cloudwatch.GraphWidget:
    lines = [] if line is None else [cloudwatch.HorizontalAnnotation(value=line)]
    return cloudwatch.GraphWidget(
        title=title, left=list(metrics), left_annotations=lines, width=8, height=6, left_y_axis=_FROM_ZERO
    )


UNITS_OF_A_MINUTE = {"Bps": "bytes a minute", "cps": "a minute", "percent": "%"}
"""Stores report sums of a minute, where Grafana shows rates of a second."""
_FROM_ZERO = cloudwatch.YAxisProps(min=0)

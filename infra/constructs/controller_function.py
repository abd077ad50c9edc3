"""One Lambda function of the control plane, as the topology declares it.

Decisions that hold for all of them: one shared bundle, Python 3.13 on ARM, JSON logs kept for a month in a log group of
their own, a role that allows exactly the grants. API functions are bounded by the throttle of the stage, processors by
the concurrency of their queue; ticks and dead letters have executions reserved where the account has enough of them. A
function whose messages come back to it may recurse: Lambda would stop the chain after 16 calls. X-Ray is off: an HTTP
API does not start traces, so they would begin in the middle, at $5 a million; the request id in the logs of API and
functions ties calls together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from headrace import topology
from headrace.certificate_names import dns_name, external_name, secret_name, store_label
from headrace.deployment_defaults import TOKENS_REQUIRED, TOKENS_VARIABLE
from headrace.topology.services import EXTERNAL_ACCESS
from infra.constructs.acknowledgements import acknowledge
from infra.constructs.deployed_resources import DeployedResources, function_name, log_group_name
from infra.constructs.least_privilege import function_role
from infra.constructs.store_network import StoreNetwork
from infra.packaging.lambda_bundle import ARCHITECTURE, RUNTIME
from infra.settings import TLS_MODES, Settings

RUNTIME_REASON = (
    "Python 3.13 is what Glue 6.0 runs, and the library is tested on 3.11 to 3.13: one version less to support. It is "
    "supported by Lambda to June 2029."
)


@dataclass(frozen=True, slots=True)
class AsynchronousLimits:
    """How long Lambda keeps an event that the function has not processed, and how often it tries again.

    Lambda's defaults are 6 hours and 2 retries.
    """

    event_age_max: cdk.Duration
    retries: int


class ControllerFunction(Construct):
    """Function, role and log group; `function` is the Lambda function itself."""

    def __init__(
        self,
        scope: Construct,
        declared: topology.Function,
        *,
        code: lambda_.Code,
        network: StoreNetwork | None,
        settings: Settings,
        more_statements: Sequence[iam.PolicyStatement] = (),
        more_environment: Mapping[str, str] | None = None,
        asynchronous: AsynchronousLimits | None = None,
    ) -> None:
        super().__init__(scope, f"Function-{declared.name}")
        name = function_name(declared)
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=log_group_name(declared),
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        seen = network.seen_from(self) if network is not None and declared.reaches_segment_stores else None
        grants = settings.effective_grants(declared.grants)
        self.declared = declared
        self.function = lambda_.Function(
            self,
            "Function",
            function_name=name,
            description=declared.description,
            handler=declared.handler,
            code=code,
            runtime=RUNTIME,
            architecture=ARCHITECTURE,
            memory_size=declared.memory_mb,
            timeout=cdk.Duration.seconds(declared.timeout_s),
            environment=_environment(declared, grants, DeployedResources.seen_from(self), settings)
            | dict(more_environment or {}),
            role=function_role(
                self, declared, grants=grants, log_group_name=log_group_name(declared), more_statements=more_statements
            ),
            log_group=self.log_group,
            logging_format=lambda_.LoggingFormat.JSON,
            tracing=lambda_.Tracing.DISABLED,
            reserved_concurrent_executions=settings.reserved_concurrency(declared),
            recursive_loop=lambda_.RecursiveLoop.ALLOW if topology.feeds_itself(declared) else None,
            max_event_age=asynchronous.event_age_max if asynchronous else None,
            retry_attempts=asynchronous.retries if asynchronous else None,
            vpc=seen.vpc_of_subnets if seen else None,
            vpc_subnets=ec2.SubnetSelection(subnets=seen.store_subnets) if seen else None,
            security_groups=[seen.functions_group] if seen else None,
        )
        acknowledge(self.function, "AwsSolutions-L1", RUNTIME_REASON)


def token_environment(grants: Iterable[topology.Grant]) -> dict[str, str]:
    """The variables of a process that may read token keys; empty for all others."""
    if "token-keys:read" not in grants:
        return {}
    return {TOKENS_VARIABLE: TOKENS_REQUIRED, "HEADRACE_TOKEN_KEYS_SECRET": topology.TOKEN_KEYS_SECRET}


def external_environment(settings: Settings, index: int) -> dict[str, str]:
    """The variables with which a store announces its address outside; empty if there is none."""
    if settings.external_domain is None:
        return {}
    ports = EXTERNAL_ACCESS.ports(index, settings.segment_stores)
    return {
        "HEADRACE_EXTERNAL_NAME": external_name(store_label(index), settings.external_domain),
        "HEADRACE_EXTERNAL_PORTS": f"{ports.start}-{ports.stop - 1}",
    }


def tls_environment(mode: str, label: str) -> dict[str, str]:
    """The variables of a process with a certificate; empty without TLS."""
    if mode == TLS_MODES[0]:
        return {}
    return {
        "HEADRACE_TLS": mode,
        "HEADRACE_TLS_SECRET": secret_name(label),
        "HEADRACE_TLS_NAME": dns_name(label),
    }


def _environment(
    declared: topology.Function, grants: Sequence[topology.Grant], resources: DeployedResources, settings: Settings
) -> dict[str, str]:
    """The variables that functions/environment.py reads; a function gets only those of resources that it may use."""
    environment = {
        "POWERTOOLS_SERVICE_NAME": declared.name,
        "POWERTOOLS_METRICS_NAMESPACE": "Headrace",
        "POWERTOOLS_TRACE_DISABLED": "true",
        # There are no plugins, and a search for them would read the metadata of every package at a cold start.
        "PYDANTIC_DISABLE_PLUGINS": "__all__",
        **settings.environment,
    }
    of_grant = {
        "metadata": ("HEADRACE_METADATA_TABLE", topology.METADATA_TABLE.name),
        "chunks": ("HEADRACE_CHUNK_BUCKET", resources.chunk_bucket_name),
        "requests": ("HEADRACE_REQUESTS_QUEUE_URL", resources.queue_url(topology.REQUESTS_QUEUE)),
        "tables": ("HEADRACE_TABLES_QUEUE_URL", resources.queue_url(topology.TABLES_QUEUE)),
        "commits": ("HEADRACE_COMMITS_QUEUE_URL", resources.queue_url(topology.COMMITS_QUEUE)),
        "aborts": ("HEADRACE_ABORTS_QUEUE_URL", resources.queue_url(topology.ABORTS_QUEUE)),
        "ticks": ("HEADRACE_TICKS_QUEUE_URL", resources.queue_url(topology.TICKS_QUEUE)),
        "audit-log": ("HEADRACE_AUDIT_LOG_GROUP", topology.AUDIT_LOG.name),
    }
    named = dict(of_grant[grant.partition(":")[0]] for grant in grants if grant != "token-keys:read")
    return environment | named | token_environment(grants)

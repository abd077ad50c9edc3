"""The controller API stack: every route of the topology on one HTTP API, each behind IAM, and their functions.

An HTTP API and not a REST API: a third of the price and less latency, at the cost of WAF, private endpoints and request
validation, which the handlers do. Callers sign their requests (SigV4) and need `execute-api:Invoke` on the routes they
use: attach one of the managed policies of `caller_policies`.
"""

from __future__ import annotations

import json
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_apigatewayv2 as apigateway
from aws_cdk import aws_logs as logs
from aws_cdk.aws_apigateway import AccessLogFormat
from aws_cdk.aws_apigatewayv2_authorizers import HttpIamAuthorizer
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from constructs import Construct

from headrace import topology
from infra.constructs import audit_subscriptions
from infra.constructs.alarms import add_alarms, topic_seen_from
from infra.constructs.burn_rates import add_burn_rate, control_plane_burn_rate
from infra.constructs.caller_policies import CallerPolicies
from infra.constructs.controller_function import ControllerFunction
from infra.constructs.declared_alarms import api_alarms
from infra.constructs.deployed_network import CONTROLLER_API_ID, publish
from infra.constructs.store_network import StoreNetwork
from infra.packaging.lambda_bundle import lambda_code
from infra.settings import Settings

BURST_S = 2
"""The burst limit in seconds of the permitted rate, for all callers together.

A burst can use every execution of an account that has a thousand. Ticks and dead letters must run nevertheless, so
their functions have reserved executions (`Function.reserved_concurrency`).
"""

_ACCESS_LOG_FIELDS = {
    "requestId": "requestId",
    "time": "requestTime",
    "sourceIp": "identity.sourceIp",
    "caller": "identity.userArn",
    "routeKey": "routeKey",
    "path": "path",
    "status": "status",
    "responseLength": "responseLength",
    "latencyMs": "responseLatency",
    "integrationLatencyMs": "integrationLatency",
    "integrationStatus": "integrationStatus",
    "error": "error.message",
    "integrationError": "integrationErrorMessage",
}


class ControllerApiStack(cdk.Stack):
    """HTTP API, access logs and one function per kind of resource; `functions` by name."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: HTTP API of the controller", **kwargs)
        code = lambda_code()
        routed = {route.function for route in topology.ROUTES}
        self.functions = {
            declared.name: ControllerFunction(self, declared, code=code, network=network, settings=settings)
            for declared in topology.FUNCTIONS
            if declared.name in routed
        }
        for function in self.functions.values():
            audit_subscriptions.subscribe(function)
        self.api = apigateway.HttpApi(
            self,
            "Api",
            api_name="headrace",
            description="Controller of Headrace",
            create_default_stage=False,
            default_authorizer=HttpIamAuthorizer(),
        )
        self._add_routes()
        self._add_stage(settings)
        self._watch()
        CallerPolicies(self, "CallerPolicies", self.api)
        publish(self, {CONTROLLER_API_ID: self.api.api_id})
        cdk.CfnOutput(self, "ApiUrl", value=self.api.api_endpoint, description="What clients connect to")
        cdk.CfnOutput(self, "ApiId", value=self.api.api_id)

    def _add_routes(self) -> None:
        integrations = {
            name: HttpLambdaIntegration(f"Integration-{name}", function.function)
            for name, function in self.functions.items()
        }
        for route in topology.ROUTES:
            self.api.add_routes(
                path=route.path,
                methods=[apigateway.HttpMethod[route.method]],
                integration=integrations[route.function],
            )

    def _watch(self) -> None:
        topic, api_id = topic_seen_from(self), self.api.api_id
        add_alarms(self, topic, api_alarms(api_id))
        add_burn_rate(self, topic, control_plane_burn_rate(api_id))

    def _add_stage(self, settings: Settings) -> None:
        access_logs = logs.LogGroup(
            self,
            "AccessLogs",
            log_group_name="/headrace/controller-api/access",
            retention=logs.RetentionDays.THREE_MONTHS,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        apigateway.HttpStage(
            self,
            "Stage",
            http_api=self.api,
            stage_name="$default",
            auto_deploy=True,
            # A set of metrics for each route would cost $27 a month, and no alarm or graph reads it.
            detailed_metrics_enabled=False,
            throttle=apigateway.ThrottleSettings(
                rate_limit=settings.calls_per_second, burst_limit=BURST_S * settings.calls_per_second
            ),
            access_log_settings=_AccessLogs(access_logs),
        )


@jsii.implements(apigateway.IAccessLogSettings)
class _AccessLogs:
    """One JSON object per call, with the caller and the reason of a refusal."""

    def __init__(self, log_group: logs.ILogGroup) -> None:
        self._destination = apigateway.LogGroupLogDestination(log_group)
        self._format = json.dumps({name: f"$context.{variable}" for name, variable in _ACCESS_LOG_FIELDS.items()})

    @property
    def destination(self) -> apigateway.IAccessLogDestination:
        return self._destination

    @property
    def format(self) -> AccessLogFormat:
        return AccessLogFormat.custom(self._format)

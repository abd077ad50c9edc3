"""The audit log stack: the log group with the audit lines of all functions, which outlives the functions."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from headrace.topology import AUDIT_LOG
from infra.settings import Settings


class AuditLogStack(cdk.Stack):
    """One log group; it is kept when the stack is deleted unless the settings say otherwise."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(
            scope, id_, description="Headrace: audit log", termination_protection=settings.keep_data, **kwargs
        )
        self.log_group = logs.LogGroup(
            self,
            "AuditLog",
            log_group_name=AUDIT_LOG.name,
            retention=logs.RetentionDays.THIRTEEN_MONTHS,
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.keep_data else cdk.RemovalPolicy.DESTROY,
        )

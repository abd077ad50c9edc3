"""The metadata stack: the table that holds every record of the control plane and of the chunk directory."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

from headrace import topology
from infra.settings import Settings

RECOVERY_DAYS = 35
"""How far back the table can be restored: the maximum of DynamoDB. Without the table the bytes in S3 are useless."""


class MetadataStack(cdk.Stack):
    """One on-demand table; it is kept when the stack is deleted unless the settings say otherwise.

    It is encrypted with AWS's own key for DynamoDB. CloudTrail records the use of this key, it costs nothing while it
    is not used, and every principal that IAM allows to use the table may use it. The setting `kms_key` names another.
    """

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(
            scope,
            id_,
            description="Headrace: metadata",
            termination_protection=settings.keep_data,
            **kwargs,
        )
        self.table = dynamodb.Table(
            self,
            "Metadata",
            table_name=topology.METADATA_TABLE.name,
            partition_key=dynamodb.Attribute(name="partition", type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name="sort", type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True, recovery_period_in_days=RECOVERY_DAYS
            ),
            deletion_protection=settings.keep_data,
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.keep_data else cdk.RemovalPolicy.DESTROY,
        )

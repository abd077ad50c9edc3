"""The encryption key stack: the customer managed key of a deployment with kms_key=create.

The policy of the key is that of AWS's own keys of the services: who may read an object, an item or a secret may decrypt
it, through that service only. So the roles of the deployment need no right of their own, and none of them loses access
while a running deployment changes to the key. An administrator can disable the key, and sees its use in CloudTrail.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.constructs import deployed_network
from infra.constructs.encryption_at_rest import ENCRYPTION_KEY
from infra.settings import Settings

KEY_PENDING_DAYS = 30
"""The longest time for which KMS can undo the deletion of a key. Without the key all history is lost."""

VIA_SERVICES = ("dynamodb", "ec2", "s3", "secretsmanager")

USE_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


class EncryptionKeyStack(cdk.Stack):
    """One symmetric key, whose material AWS replaces every year; it is kept as the data is."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(
            scope, id_, description="Headrace: encryption key", termination_protection=settings.keep_data, **kwargs
        )
        key = kms.Key(
            self,
            "Key",
            alias="alias/headrace",
            description="Headrace: tier 2, metadata, volumes, secrets and logs",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(KEY_PENDING_DAYS),
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.keep_data else cdk.RemovalPolicy.DESTROY,
        )
        for statement in self._statements():
            key.add_to_resource_policy(statement)
        deployed_network.publish(self, {ENCRYPTION_KEY: key.key_arn})

    def _statements(self) -> list[iam.PolicyStatement]:
        """Also in docs/operating/security.md, for keys that a deployment did not create."""
        through = {
            "kms:CallerAccount": self.account,
            "kms:ViaService": [f"{service}.{self.region}.{self.url_suffix}" for service in VIA_SERVICES],
        }
        log_groups = self.format_arn(
            service="logs", resource="log-group", resource_name="*", arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME
        )
        return [
            iam.PolicyStatement(
                sid="UseThroughServices",
                principals=[iam.AnyPrincipal()],
                actions=list(USE_ACTIONS),
                resources=["*"],
                conditions={"StringEquals": through},
            ),
            iam.PolicyStatement(
                sid="GrantToServices",
                principals=[iam.AnyPrincipal()],
                actions=["kms:CreateGrant"],
                resources=["*"],
                conditions={"StringEquals": through, "Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
            iam.PolicyStatement(
                sid="EncryptLogs",
                principals=[iam.ServicePrincipal(f"logs.{self.region}.{self.url_suffix}")],
                actions=[action for action in USE_ACTIONS if action != "kms:GenerateDataKeyWithoutPlaintext"],
                resources=["*"],
                conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
            ),
        ]

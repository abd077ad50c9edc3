"""The token keys stack: the secret with the keys for delegation tokens, and its rotation. Only with tokens=required.

The stack is complete when a key signs. Everything that sends tokens or demands them is deployed later, so a rotation
that does not work changes nothing else.

CloudFormation makes the secret with a text that has no keys, so no template knows one. The first rotation, at once,
makes the first key; the others follow every 30 days. The function of the rotation is ours, since a key is not a
password: the older keys stay in the secret until the tokens that they have signed are at their end.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from headrace.topology import TOKEN_KEY_GATE, TOKEN_KEY_ROTATION, TOKEN_KEYS_SECRET
from infra.constructs.controller_function import ControllerFunction
from infra.constructs.store_network import StoreNetwork
from infra.packaging.lambda_bundle import lambda_code
from infra.settings import Settings

ROTATION_DAYS = 30

ROTATION_ACTIONS = (
    "secretsmanager:DescribeSecret",
    "secretsmanager:GetSecretValue",
    "secretsmanager:PutSecretValue",
    "secretsmanager:UpdateSecretVersionStage",
)


class TokenKeysStack(cdk.Stack):
    """Secret and rotation. Secrets Manager encrypts the secret with the account's key for secrets."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: keys of delegation tokens", **kwargs)
        self.secret = secretsmanager.Secret(
            self,
            "TokenKeys",
            secret_name=TOKEN_KEYS_SECRET,
            description="Headrace: keys that sign delegation tokens; `headrace token-key` changes them",
            # CloudFormation generates no keys, but a field that nothing reads.
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template='{"keys": []}', generate_string_key="unused", exclude_punctuation=True
            ),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        code = lambda_code()
        rotation = ControllerFunction(
            self,
            TOKEN_KEY_ROTATION,
            code=code,
            network=network,
            settings=settings,
            more_statements=[
                iam.PolicyStatement(
                    sid="RotateKeys", actions=list(ROTATION_ACTIONS), resources=[self.secret.secret_arn]
                )
            ],
        )
        rotation.function.add_permission(
            "Rotate",
            principal=iam.ServicePrincipal("secretsmanager.amazonaws.com"),
            source_account=self.account,
        )
        schedule = secretsmanager.CfnRotationSchedule(
            self,
            "Rotation",
            secret_id=self.secret.secret_arn,
            rotation_lambda_arn=rotation.function.function_arn,
            rotation_rules=secretsmanager.CfnRotationSchedule.RotationRulesProperty(
                automatically_after_days=ROTATION_DAYS
            ),
            rotate_immediately_on_update=True,
        )
        # Secrets Manager checks that it may call the function, and then calls it at once.
        schedule.node.add_dependency(rotation)
        gate = ControllerFunction(self, TOKEN_KEY_GATE, code=code, network=network, settings=settings)
        signing = cdk.CustomResource(
            self,
            "SigningKey",
            service_token=gate.function.function_arn,
            resource_type="Custom::HeadraceSigningKey",
            service_timeout=cdk.Duration.seconds(TOKEN_KEY_GATE.timeout_s),
        )
        signing.node.add_dependency(schedule)

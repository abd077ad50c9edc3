"""The certificates stack: keys of certification authorities, a secret for each name, and the function that issues.

Only with tls=permissive or tls=required. The stack is complete when each name has a certificate, so a deployment ends
here if none can be issued, before anything that needs one has changed.

A key signs in KMS, and never leaves it. Its policy lets the function sign, and no other principal of the account: an
administrator would have to change the policy first, which CloudTrail records. The setting `ca_keys` declares the keys.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_servicediscovery as servicediscovery
from constructs import Construct

from headrace import topology
from headrace.certificate_names import DOMAIN, labels_text, secret_name
from infra.constructs import deployed_network
from infra.constructs.acknowledgements import acknowledge
from infra.constructs.controller_function import AsynchronousLimits, ControllerFunction
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.least_privilege import leases_statement, trust_statement
from infra.constructs.store_network import StoreNetwork
from infra.packaging import lambda_bundle
from infra.settings import Settings

ROTATION_REASON = "The function of this stack replaces the certificate and its key every four days."
KEY_PENDING_DAYS = 30
"""The longest time for which KMS can undo the deletion of a key."""
DAILY = AsynchronousLimits(cdk.Duration.hours(6), retries=2)
"""Lambda's maxima: the next run is a day later."""

ADMINISTRATOR_ACTIONS = (
    "kms:CancelKeyDeletion",
    "kms:DescribeKey",
    "kms:DisableKey",
    "kms:EnableKey",
    "kms:GetKeyPolicy",
    "kms:GetKeyRotationStatus",
    "kms:GetPublicKey",
    "kms:ListResourceTags",
    "kms:PutKeyPolicy",
    "kms:ScheduleKeyDeletion",
    "kms:TagResource",
    "kms:UntagResource",
    "kms:UpdateKeyDescription",
)
"""What CloudFormation and operators do with a key. Signing is not part of it."""


class CertificatesStack(cdk.Stack):
    """Keys, secrets, the function with its schedule, and the private DNS zone of the names."""

    def __init__(self, scope: Construct, id_: str, settings: Settings, network: StoreNetwork, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: certificates", **kwargs)
        resources = DeployedResources.seen_from(self)
        namespace = servicediscovery.PrivateDnsNamespace(
            self,
            "Names",
            name=DOMAIN,
            vpc=network.seen_from(self).vpc,
            description="Headrace: segment stores and gRPC bridge",
        )
        deployed_network.publish(self, {deployed_network.NAMESPACE: namespace.namespace_id})
        secrets = [self._secret(label) for label in settings.certificate_labels]
        issuer = ControllerFunction(
            self,
            topology.CERTIFICATES,
            code=lambda_bundle.lambda_code(lambda_bundle.CERTIFICATES),
            network=network,
            settings=settings,
            more_statements=[
                trust_statement(resources),
                leases_statement(resources),
                iam.PolicyStatement(
                    sid="ReplaceCertificates",
                    actions=["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"],
                    resources=[secret.secret_arn for secret in secrets],
                ),
            ],
            more_environment={"HEADRACE_METADATA_TABLE": topology.METADATA_TABLE.name},
            asynchronous=DAILY,
        )
        keys = [self._key(number, issuer) for number in settings.ca_keys]
        declared = {
            "HEADRACE_AUTHORITY_KEYS": ",".join(key.key_arn for key in keys),
            "HEADRACE_CERTIFICATE_LABELS": labels_text(settings.certificate_labels),
        }
        outside = settings.external_domain or ""
        for name, value in declared.items():
            issuer.function.add_environment(name, value)
        self._call_daily(issuer)
        issued = cdk.CustomResource(
            self,
            "Issued",
            service_token=issuer.function.function_arn,
            resource_type="Custom::HeadraceCertificates",
            service_timeout=cdk.Duration.seconds(topology.CERTIFICATES.timeout_s),
            # CloudFormation calls the function again when one of these changes.
            properties={
                "Keys": declared["HEADRACE_AUTHORITY_KEYS"],
                "Labels": declared["HEADRACE_CERTIFICATE_LABELS"],
                "Tls": settings.tls,
                **({"ExternalDomain": outside} if outside else {}),
            },
        )
        issued.node.add_dependency(issuer, *secrets, *keys)

    def _secret(self, label: str) -> secretsmanager.Secret:
        """A secret with a text that no process accepts, until the function has replaced it."""
        secret = secretsmanager.Secret(
            self,
            f"Certificate-{label}",
            secret_name=secret_name(label),
            description=f"Headrace: certificate and key of {label}.{DOMAIN}",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template="{}", generate_string_key="unused", exclude_punctuation=True
            ),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        acknowledge(secret, "AwsSolutions-SMG4", ROTATION_REASON)
        return secret

    def _key(self, number: int, issuer: ControllerFunction) -> kms.Key:
        role = issuer.function.role
        if role is None:
            raise TypeError("a function has a role")
        return kms.Key(
            self,
            f"Authority{number}",
            description=f"Headrace: certification authority {number}",
            key_spec=kms.KeySpec.ECC_NIST_P256,
            key_usage=kms.KeyUsage.SIGN_VERIFY,
            pending_window=cdk.Duration.days(KEY_PENDING_DAYS),
            removal_policy=cdk.RemovalPolicy.DESTROY,
            policy=iam.PolicyDocument(
                statements=[
                    iam.PolicyStatement(
                        sid="Administer",
                        principals=[iam.AccountRootPrincipal()],
                        actions=list(ADMINISTRATOR_ACTIONS),
                        resources=["*"],
                    ),
                    iam.PolicyStatement(
                        sid="Sign",
                        principals=[iam.ArnPrincipal(role.role_arn)],
                        actions=["kms:GetPublicKey", "kms:Sign"],
                        resources=["*"],
                    ),
                ]
            ),
        )

    def _call_daily(self, issuer: ControllerFunction) -> None:
        events.Rule(
            self,
            "Daily",
            rule_name=f"headrace-{topology.CERTIFICATES.name}",
            description="Calls the function that issues certificates once a day",
            schedule=events.Schedule.rate(cdk.Duration.days(1)),
            targets=[
                targets.LambdaFunction(issuer.function, max_event_age=DAILY.event_age_max, retry_attempts=DAILY.retries)
            ],
        )

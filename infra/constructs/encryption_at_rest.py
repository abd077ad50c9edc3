"""Encrypts what a deployment stores with the key of the setting `kms_key`, in one place for all stacks.

Without the setting AWS's own keys encrypt everything. Queues keep SQS's own key: messages have names, and no events.
The bucket with the access logs of the chunk bucket keeps S3's, which delivers none into a bucket with a key of KMS.
"""

from __future__ import annotations

import aws_cdk as cdk
import jsii
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import IConstruct

from infra.constructs.deployed_network import published

ENCRYPTION_KEY = "/headrace/encryption/key"
"""The parameter with the ARN of the key, in a deployment with kms_key=create."""

ACCESS_LOGS_ID = "AccessLogs"
"""The construct of the bucket with access logs."""

_VOLUME_KEY = "VolumeConfigurations.0.ManagedEBSVolume.KmsKeyId"


def encrypt_stack(stack: cdk.Stack, key_arn: str | None) -> None:
    """Encrypt what the stack stores with this key; None: the key that the deployment has created."""
    arn = published(stack, ENCRYPTION_KEY) if key_arn is None else key_arn
    cdk.Aspects.of(stack).add(_EncryptWith(arn))


@jsii.implements(cdk.IAspect)
class _EncryptWith:
    def __init__(self, arn: str) -> None:
        self._arn = arn

    def visit(self, node: IConstruct) -> None:
        arn = self._arn
        if isinstance(node, s3.CfnBucket):
            if node.node.scope is not None and node.node.scope.node.id != ACCESS_LOGS_ID:
                node.bucket_encryption = _with_bucket_key(arn)
        elif isinstance(node, dynamodb.CfnTable):
            node.sse_specification = dynamodb.CfnTable.SSESpecificationProperty(
                sse_enabled=True, sse_type="KMS", kms_master_key_id=arn
            )
        elif isinstance(node, logs.CfnLogGroup | secretsmanager.CfnSecret):
            node.kms_key_id = arn
        elif isinstance(node, ecs.CfnService) and cdk.Stack.of(node).resolve(node.volume_configurations):
            node.add_property_override(_VOLUME_KEY, arn)


def _with_bucket_key(arn: str) -> s3.CfnBucket.BucketEncryptionProperty:
    """With a key of the bucket S3 asks KMS once in a while, and not for each object."""
    by_default = s3.CfnBucket.ServerSideEncryptionByDefaultProperty(sse_algorithm="aws:kms", kms_master_key_id=arn)
    rule = s3.CfnBucket.ServerSideEncryptionRuleProperty(
        bucket_key_enabled=True, server_side_encryption_by_default=by_default
    )
    return s3.CfnBucket.BucketEncryptionProperty(server_side_encryption_configuration=[rule])

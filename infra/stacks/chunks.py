"""The chunks stack: the bucket of tier 2, in which the history of streams is stored.

The bucket is versioned although chunks never change: a version remains when a chunk is deleted. For VERSION_DAYS an
operator can restore chunks that a faulty sweep deleted, and a table that is restored to a time within those days still
finds its chunks. The cost is that truncated data is paid for that much longer.

Objects of logs (`docs/using/s3-streams.md`) are deleted when tier 2 has what is in them. Their versions remain for a
day only, since they are as large as everything that was written.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
from constructs import Construct

from headrace.deployment_defaults import LOG_OBJECTS_PREFIX
from infra.constructs.acknowledgements import acknowledge
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.encryption_at_rest import ACCESS_LOGS_ID
from infra.constructs.write_once import write_once
from infra.settings import Settings

VERSION_DAYS = 7
LOG_VERSION_DAYS = 1
ACCESS_LOG_DAYS = 90
INCOMPLETE_UPLOAD_DAYS = 1

ACCESS_LOGS_REASON = "This bucket holds the access logs of the chunk bucket; logging its own access would never end."


class ChunksStack(cdk.Stack):
    """Chunk bucket and the bucket of its access logs, both private, encrypted and reachable over TLS only.

    They are encrypted with S3's own keys, unless the setting `kms_key` says otherwise.
    """

    def __init__(self, scope: Construct, id_: str, settings: Settings, **kwargs: Any) -> None:
        super().__init__(
            scope, id_, description="Headrace: tier 2 in S3", termination_protection=settings.keep_data, **kwargs
        )
        removal_policy = cdk.RemovalPolicy.RETAIN if settings.keep_data else cdk.RemovalPolicy.DESTROY
        access_logs = _private_bucket(
            self,
            ACCESS_LOGS_ID,
            removal_policy=removal_policy,
            lifecycle_rules=[s3.LifecycleRule(id="expire", expiration=cdk.Duration.days(ACCESS_LOG_DAYS))],
        )
        acknowledge(access_logs, "AwsSolutions-S1", ACCESS_LOGS_REASON)
        self.bucket = _private_bucket(
            self,
            "Chunks",
            bucket_name=DeployedResources.seen_from(self).chunk_bucket_name,
            removal_policy=removal_policy,
            versioned=True,
            server_access_logs_bucket=access_logs,
            server_access_logs_prefix="chunks/",
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="drop-what-was-deleted",
                    noncurrent_version_expiration=cdk.Duration.days(VERSION_DAYS),
                    expired_object_delete_marker=True,
                ),
                s3.LifecycleRule(  # S3 obeys the shorter time of two rules
                    id="drop-old-logs",
                    prefix=LOG_OBJECTS_PREFIX,
                    noncurrent_version_expiration=cdk.Duration.days(LOG_VERSION_DAYS),
                ),
                s3.LifecycleRule(
                    id="abort-abandoned-uploads",
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(INCOMPLETE_UPLOAD_DAYS),
                ),
            ],
        )
        write_once(self.bucket, settings)
        cdk.CfnOutput(self, "ChunkBucketName", value=self.bucket.bucket_name)


def _private_bucket(scope: Construct, id_: str, **kwargs: Any) -> s3.Bucket:
    return s3.Bucket(
        scope,
        id_,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        encryption=s3.BucketEncryption.S3_MANAGED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        # A bucket with objects could not be deleted with the stack of a trial deployment.
        auto_delete_objects=kwargs["removal_policy"] is cdk.RemovalPolicy.DESTROY,
        **kwargs,
    )

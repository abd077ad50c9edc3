"""The policy of the chunk bucket: stores write each chunk once, and only their collector deletes it.

The policy denies, so no policy of a role can allow it again. An administrator may still change the policy of the
bucket, which CloudTrail records. It does not concern S3's own lifecycle rules.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from infra.constructs.deployed_resources import STORES_STACK_NAME
from infra.settings import Settings

STORE_ROLES = f"{STORES_STACK_NAME}-TaskRole*"
"""CloudFormation makes the names of the roles of running stores, which write chunks and collect what is unused."""
CLEANER_ROLES = "HeadraceChunks-CustomS3AutoDelete*"
"""The role that empties the bucket of a trial deployment, which keeps no data."""

_WRITES = ["s3:PutObject"]
_DELETIONS = ["s3:DeleteObject"]
_DELETIONS_OF_VERSIONS = ["s3:DeleteObjectVersion"]
_CONDITION_KEY = "s3:if-none-match"
"""Present if the request fails where an object has the name already."""


def write_once(bucket: s3.Bucket, settings: Settings) -> None:
    """Add the statements to the policy of the bucket."""
    stores, restore = [_role(bucket, STORE_ROLES)], [settings.restore_role] if settings.restore_role else []
    cleaners = [] if settings.keep_data else [_role(bucket, CLEANER_ROLES)]
    _deny(bucket, "OnlyStoresWrite", _WRITES, [*stores, *restore])
    _deny(bucket, "OnlyStoresDelete", _DELETIONS, [*stores, *restore, *cleaners])
    # A version that the collector has deleted can be restored for some days, also if a store was taken over.
    _deny(bucket, "VersionsStay", _DELETIONS_OF_VERSIONS, [*restore, *cleaners])
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid="NoObjectIsReplaced",
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=_WRITES,
            resources=[bucket.arn_for_objects("*")],
            conditions={
                "Null": {_CONDITION_KEY: "true"},
                **({"ArnNotEquals": {"aws:PrincipalArn": restore}} if restore else {}),
            },
        )
    )


def _deny(bucket: s3.Bucket, sid: str, actions: list[str], but: list[str]) -> None:
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid=sid,
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=actions,
            resources=[bucket.arn_for_objects("*")],
            conditions={"ArnNotLike": {"aws:PrincipalArn": but}} if but else None,
        )
    )


def _role(bucket: s3.Bucket, name: str) -> str:
    """The ARN of roles of this account."""
    return cdk.Stack.of(bucket).format_arn(service="iam", region="", resource="role", resource_name=name)

"""The table and the buckets: kept, recoverable, private, encrypted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cdk_assembly import Assembly

from headrace import topology
from headrace.adapters.dynamodb.record_item import BILLING_MODE, table_schema
from headrace.codec.log_objects import container_log_prefix

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


def test_the_table_is_the_topologys_and_can_be_restored(assembly: Assembly):
    table = assembly.only("AWS::DynamoDB::Table")
    assert table.properties["TableName"] == topology.METADATA_TABLE.name
    assert table.properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert table.properties["SSESpecification"]["SSEEnabled"] is True


def test_the_table_is_the_one_that_the_model_describes(assembly: Assembly):
    """The infrastructure does not import adapters, so it declares the keys a second time."""
    table = assembly.only("AWS::DynamoDB::Table")
    assert {name: table.properties[name] for name in table_schema()} == table_schema()
    assert table.properties["BillingMode"] == BILLING_MODE
    assert not {"GlobalSecondaryIndexes", "LocalSecondaryIndexes"} & set(table.properties)


def test_data_outlives_its_stacks(assembly: Assembly):
    table = assembly.only("AWS::DynamoDB::Table")
    assert table.properties["DeletionProtectionEnabled"] is True
    for resource in (table, *assembly.resources("AWS::S3::Bucket")):
        assert resource.attributes["DeletionPolicy"] == "Retain", resource.logical_id
        assert resource.attributes["UpdateReplacePolicy"] == "Retain", resource.logical_id


def test_a_trial_leaves_nothing_behind(smallest_assembly: Assembly):
    table = smallest_assembly.only("AWS::DynamoDB::Table")
    assert table.properties.get("DeletionProtectionEnabled", False) is False
    for resource in (table, *smallest_assembly.resources("AWS::S3::Bucket")):
        assert resource.attributes["DeletionPolicy"] == "Delete", resource.logical_id


def test_buckets_are_private_encrypted_and_refuse_plain_http(assembly: Assembly):
    buckets = assembly.resources("AWS::S3::Bucket")
    assert len(buckets) == 3
    for bucket in buckets:
        assert set(bucket.properties["PublicAccessBlockConfiguration"].values()) == {True}
        assert len(bucket.properties["PublicAccessBlockConfiguration"]) == 4
        (rule,) = bucket.properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
        (policy,) = [
            policy.properties["PolicyDocument"]["Statement"]
            for policy in assembly.resources("AWS::S3::BucketPolicy", bucket.stack)
            if assembly.get(bucket.stack, policy.properties["Bucket"]).logical_id == bucket.logical_id
        ]
        conditions = [statement.get("Condition") for statement in policy if statement["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in conditions


def _bucket_policy(assembly: Assembly, as_text: Callable[[object], str]) -> dict[str, Any]:
    """The statements of the chunk bucket by their names, with the patterns of roles that they leave out."""
    (bucket,) = [
        each
        for each in assembly.resources("AWS::S3::Bucket", "HeadraceChunks")
        if "headrace-chunks" in as_text(each.properties.get("BucketName", ""))
    ]
    (policy,) = [
        each.properties["PolicyDocument"]["Statement"]
        for each in assembly.resources("AWS::S3::BucketPolicy", "HeadraceChunks")
        if assembly.get("HeadraceChunks", each.properties["Bucket"]).logical_id == bucket.logical_id
    ]
    return {each["Sid"]: each for each in policy if "Sid" in each}


def _but(statement: dict[str, Any], as_text: Callable[[object], str]) -> list[str]:
    named = statement.get("Condition", {}).get("ArnNotLike", {}).get("aws:PrincipalArn", [])
    roles = named if isinstance(named, list) else [named]
    return [as_text(each).rpartition(":role/")[2] for each in roles]


STORE_ROLES = "HeadraceSegmentStores-TaskRole*"


def test_only_stores_write_and_delete_chunks(
    assembly: Assembly, smallest_assembly: Assembly, external_assembly: Assembly, as_text: Callable[[object], str]
):
    usual = _bucket_policy(assembly, as_text)
    assert (usual["OnlyStoresWrite"]["Effect"], usual["OnlyStoresWrite"]["Action"]) == ("Deny", "s3:PutObject")
    assert _but(usual["OnlyStoresWrite"], as_text) == [STORE_ROLES]
    assert usual["OnlyStoresDelete"]["Action"] == "s3:DeleteObject"
    assert _but(usual["OnlyStoresDelete"], as_text) == [STORE_ROLES]
    assert (usual["VersionsStay"]["Action"], "Condition" in usual["VersionsStay"]) == ("s3:DeleteObjectVersion", False)
    trial = _bucket_policy(smallest_assembly, as_text)
    assert _but(trial["OnlyStoresWrite"], as_text) == [STORE_ROLES]
    for name in ("OnlyStoresDelete", "VersionsStay"):
        assert "HeadraceChunks-CustomS3AutoDelete*" in _but(trial[name], as_text)
    restored = _bucket_policy(external_assembly, as_text)
    for name in ("OnlyStoresWrite", "OnlyStoresDelete", "VersionsStay"):
        assert "restore" in _but(restored[name], as_text)
    for statement in usual.values():
        assert statement["Principal"] == {"AWS": "*"}


def test_no_chunk_is_replaced(assembly: Assembly, as_text: Callable[[object], str]):
    """S3 has the condition key only if the request fails where an object has the name: stores ask for that."""
    statement = _bucket_policy(assembly, as_text)["NoObjectIsReplaced"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:PutObject")
    assert statement["Condition"] == {"Null": {"s3:if-none-match": "true"}}


def test_roles_of_stores_have_the_names_of_the_policy(assembly: Assembly):
    """CloudFormation makes a name of the stack's and the first 24 characters of the logical id."""
    for task in assembly.resources("AWS::ECS::TaskDefinition", "HeadraceSegmentStores"):
        role = assembly.get(task.stack, task.properties["TaskRoleArn"])
        assert "RoleName" not in role.properties
        assert f"{role.stack}-{role.logical_id[:24]}".startswith(STORE_ROLES.removesuffix("*"))


def test_deleted_chunks_can_be_brought_back_for_a_while(assembly: Assembly, as_text: Callable[[object], str]):
    chunks = assembly.resources("AWS::S3::Bucket", "HeadraceChunks")
    (bucket,) = [each for each in chunks if "BucketName" in each.properties]
    assert as_text(bucket.properties["BucketName"]) == f"{topology.CHUNK_BUCKET.name}-<AWS::AccountId>-<AWS::Region>"
    assert bucket.properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "LoggingConfiguration" in bucket.properties
    rules = {rule["Id"]: rule for rule in bucket.properties["LifecycleConfiguration"]["Rules"]}
    assert rules["drop-what-was-deleted"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 7}
    assert container_log_prefix(0).startswith(rules["drop-old-logs"]["Prefix"])
    assert rules["drop-old-logs"]["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1}
    assert rules["abort-abandoned-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert not [rule for rule in rules.values() if "ExpirationInDays" in rule], "history is not S3's to expire"

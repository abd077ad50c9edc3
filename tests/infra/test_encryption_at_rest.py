"""With a customer managed key everything that holds events, names or secrets is encrypted with it, in all stacks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import Assembly, Resource, known_assets

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

KEY_STACK = "HeadraceEncryptionKey"
ARN = "arn:aws:kms:us-east-1:111122223333:key/0a1b2c3d-0000-4000-8000-0123456789ab"

PROGRAM = f"""
import json, sys
import aws_cdk as cdk
from infra import application
from infra.constructs.encryption_at_rest import encrypt_stack
from infra.settings import Settings
from infra.stacks.metadata import MetadataStack
context = json.load(open("cdk.json"))["context"]
created = cdk.App(outdir=f"{{sys.argv[1]}}/created", context=context)
choices = dict(tokens=True, tls="required", grpc_bridge=True, spark_jobs=("replay",))
application.add_stacks(created, Settings(kms_key="create", **choices))
created.synth()
given = cdk.App(outdir=f"{{sys.argv[1]}}/given", context=context)
encrypt_stack(MetadataStack(given, "HeadraceMetadata", Settings()), {ARN!r})
given.synth()
"""


@pytest.fixture(scope="module")
def assemblies(
    project: Path,
    tmp_path_factory: pytest.TempPathFactory,
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> dict[str, Assembly]:
    directory = tmp_path_factory.mktemp("encrypted")
    with known_assets(project, directory / "created"):
        finished = run_python(f"import sys; sys.argv[1:] = [{str(directory)!r}]\n" + PROGRAM)
    assert finished.returncode == 0, finished.stderr
    return {name: Assembly(directory / name) for name in ("created", "given")}


def _key_of(resource: Resource) -> Any:
    """What the resource is encrypted with."""
    properties = resource.properties
    match resource.type:
        case "AWS::S3::Bucket":
            (rule,) = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
            assert rule["BucketKeyEnabled"] is True, "or S3 asks KMS for each chunk"
            by_default = rule["ServerSideEncryptionByDefault"]
            assert by_default["SSEAlgorithm"] == "aws:kms"
            return by_default["KMSMasterKeyID"]
        case "AWS::DynamoDB::Table":
            assert properties["SSESpecification"]["SSEType"] == "KMS"
            return properties["SSESpecification"]["KMSMasterKeyId"]
        case "AWS::ECS::Service":
            (volume,) = properties["VolumeConfigurations"]
            return volume["ManagedEBSVolume"]["KmsKeyId"]
        case _:
            return properties["KmsKeyId"]


def _stored(assembly: Assembly) -> list[Resource]:
    """All that stores something, except the bucket of access logs and what has no volume."""
    kinds = ("AWS::S3::Bucket", "AWS::DynamoDB::Table", "AWS::Logs::LogGroup", "AWS::SecretsManager::Secret")
    stored = [each for kind in kinds for each in assembly.resources(kind)]
    stored += [each for each in assembly.resources("AWS::ECS::Service") if "VolumeConfigurations" in each.properties]
    return [each for each in stored if not each.logical_id.startswith("AccessLogs")]


def test_all_that_is_stored_has_the_key(assemblies: dict[str, Assembly]):
    assembly = assemblies["created"]
    stored = _stored(assembly)
    assert {each.type for each in stored} >= {"AWS::S3::Bucket", "AWS::DynamoDB::Table", "AWS::ECS::Service"}
    assert len([each for each in stored if each.type == "AWS::SecretsManager::Secret"]) >= 6
    for each in stored:
        parameter = assembly.templates[each.stack]["Parameters"][_key_of(each)["Ref"]]
        assert parameter["Default"] == "/headrace/encryption/key", each.logical_id


def test_a_key_may_be_given(assemblies: dict[str, Assembly]):
    (table,) = _stored(assemblies["given"])
    assert _key_of(table) == ARN


def test_a_created_key_is_deployed_first_and_kept(assemblies: dict[str, Assembly]):
    created = assemblies["created"]
    key = created.only("AWS::KMS::Key", KEY_STACK)
    assert key.attributes["DeletionPolicy"] == "Retain"
    assert key.properties["EnableKeyRotation"] is True
    published = created.only("AWS::SSM::Parameter", KEY_STACK)
    assert published.properties["Name"] == "/headrace/encryption/key"
    manifest = (created.directory / "manifest.json").read_text()
    assert manifest.count(f'"{KEY_STACK}"') >= len(created.templates) - 1, "each other stack waits for it"


def test_the_key_is_used_through_services_only(assemblies: dict[str, Assembly]):
    """As AWS's own keys are, so that a role that may read something may decrypt it."""
    policy = assemblies["created"].only("AWS::KMS::Key", KEY_STACK).properties["KeyPolicy"]
    statements = {each["Sid"]: each for each in policy["Statement"] if "Sid" in each}
    assert set(statements) == {"UseThroughServices", "GrantToServices", "EncryptLogs"}
    for name in ("UseThroughServices", "GrantToServices"):
        condition = statements[name]["Condition"]["StringEquals"]
        assert condition["kms:CallerAccount"] == {"Ref": "AWS::AccountId"}
        services = {str(each["Fn::Join"][1][0]) for each in condition["kms:ViaService"]}
        assert services == {"dynamodb.", "ec2.", "s3.", "secretsmanager."}
    assert "kms:EncryptionContext:aws:logs:arn" in statements["EncryptLogs"]["Condition"]["ArnLike"]
    (owner,) = [each for each in policy["Statement"] if "Sid" not in each]
    assert owner["Action"] == "kms:*"


def test_without_the_setting_keys_of_aws_encrypt(assembly: Assembly):
    assert not assembly.resources("AWS::KMS::Key")
    for each in assembly.resources("AWS::Logs::LogGroup"):
        assert "KmsKeyId" not in each.properties

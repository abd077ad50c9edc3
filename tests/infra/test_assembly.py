"""The app as a whole: judged by cdk-nag with nothing unexplained, in order, free of secrets, the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cdk_assembly import Assembly

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

STACKS = {
    "HeadraceMetadata",
    "HeadraceChunks",
    "HeadraceQueues",
    "HeadraceNetwork",
    "HeadraceControllerApi",
    "HeadraceProcessors",
    "HeadraceSegmentStores",
    "HeadraceSpark",
    "HeadraceObservability",
}
RESOURCES_PER_STACK_MAX = 500


def test_the_stacks(assembly: Assembly):
    assert set(assembly.templates) == STACKS


def test_cdk_nag_found_nothing_that_is_not_explained(assembly: Assembly):
    report = json.loads((assembly.directory / "validation-report.json").read_text())
    assert report["pluginReports"] == []


def test_cloudformation_knows_every_property(assembly: Assembly):
    """W3005 warns of an order that the CDK states twice, which it always does."""
    templates = sorted(str(path) for path in assembly.directory.glob("*.template.json"))
    cfn_lint = Path(sys.executable).with_name("cfn-lint")
    command = [str(cfn_lint), "--ignore-checks", "W3005", "--regions", "us-east-1", "--", *templates]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_cdk_nag_does_judge(tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]):
    """The report is silent about a judge that found nothing, so give it something to find."""
    finished = run_python(
        "import aws_cdk as cdk; from aws_cdk import aws_sqs as sqs; from infra.application import judge\n"
        "app = cdk.App(); sqs.Queue(cdk.Stack(app, 'Careless'), 'Queue'); judge(app); app.synth()",
        CDK_OUTDIR=str(tmp_path),
    )
    assert finished.returncode != 0
    (report,) = json.loads((tmp_path / "validation-report.json").read_text())["pluginReports"]
    rules = {violation["ruleName"].rpartition("::")[2] for violation in report["violations"]}
    assert rules == {"AwsSolutions-SQS3", "AwsSolutions-SQS4"}


def test_named_resources_are_deployed_before_their_users(assembly: Assembly):
    manifest = json.loads((assembly.directory / "manifest.json").read_text())["artifacts"]
    for user in ("HeadraceControllerApi", "HeadraceProcessors", "HeadraceSegmentStores"):
        assert {"HeadraceMetadata", "HeadraceChunks"} <= set(manifest[user]["dependencies"])
    for user in ("HeadraceControllerApi", "HeadraceProcessors"):
        assert "HeadraceQueues" in manifest[user]["dependencies"]


def _s3_deletion_code(assembly) -> str:
    """The asset of the CDK's own function that empties the buckets of a trial."""
    (handler,) = assembly.directory.glob("asset.*/index.js")
    return str(handler.parent.name)


def test_data_is_destroyed_last(assembly: Assembly):
    """`cdk destroy` ends at the first stack that refuses, as protected ones do: all others must be gone by then."""
    manifest = json.loads((assembly.directory / "manifest.json").read_text())["artifacts"]

    def needed_by(stack: str) -> set[str]:
        direct = {each for each in manifest[stack]["dependencies"] if each in STACKS}
        return direct.union(*map(needed_by, direct))

    protected = {name for name in STACKS if manifest[name]["properties"].get("terminationProtection")}
    assert protected == {"HeadraceMetadata", "HeadraceChunks"}
    for stack in STACKS - protected:
        assert protected <= needed_by(stack), stack


def test_a_trial_is_destroyed_with_its_objects(assembly: Assembly, smallest_assembly: Assembly):
    """CloudFormation does not delete a bucket that holds anything."""
    manifest = json.loads((smallest_assembly.directory / "manifest.json").read_text())["artifacts"]
    assert not [name for name in manifest if manifest[name].get("properties", {}).get("terminationProtection")]
    emptied = {
        each.properties["BucketName"]["Ref"] for each in smallest_assembly.resources("Custom::S3AutoDeleteObjects")
    }
    assert emptied == {bucket.logical_id for bucket in smallest_assembly.resources("AWS::S3::Bucket")}
    assert assembly.resources("Custom::S3AutoDeleteObjects") == []


def test_synth_needs_neither_account_nor_look_up(assembly: Assembly):
    manifest = json.loads((assembly.directory / "manifest.json").read_text())
    assert manifest.get("missing", []) == []
    for name in STACKS:
        assert manifest["artifacts"][name]["environment"] == "aws://unknown-account/unknown-region"


def test_stacks_stay_below_cloudformations_limit(assembly: Assembly):
    for name, template in assembly.templates.items():
        assert len(template["Resources"]) < RESOURCES_PER_STACK_MAX, name


def test_the_same_sources_make_the_same_assets(assembly: Assembly, smallest_assembly: Assembly):
    """Two synths in two folders: if names depended on more than content, each deployment would replace everything."""

    def assets(of) -> set[str]:
        return {path.name for path in of.directory.glob("asset.*")}

    deletes_objects = {_s3_deletion_code(smallest_assembly)}
    assert assets(smallest_assembly) - deletes_objects <= assets(assembly)
    assert len(assets(smallest_assembly) - deletes_objects) == 2  # the functions' bundle and the image's context

"""The app as a whole: judged by cdk-nag with nothing unexplained, in order, free of secrets, the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import ROOT, Assembly

from infra.constructs.deployed_network import NO_VPC_ID
from infra.packaging.image_context import GRPC_BRIDGE

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

STACKS = {
    "HeadraceMetadata",
    "HeadraceChunks",
    "HeadraceAuditLog",
    "HeadraceQueues",
    "HeadraceNetwork",
    "HeadraceControllerApi",
    "HeadraceProcessors",
    "HeadraceSegmentStores",
    "HeadraceSpark",
    "HeadraceObservability",
    "HeadraceDashboard",
}
SECURE_STACKS = {"HeadraceCertificates", "HeadraceTokenKeys"}
DATA_STACKS = {"HeadraceMetadata", "HeadraceChunks", "HeadraceAuditLog"}
RESOURCES_PER_STACK_MAX = 500


def test_the_stacks(assembly: Assembly, default_assembly: Assembly):
    assert set(assembly.templates) == STACKS
    assert set(default_assembly.templates) == STACKS | SECURE_STACKS


def test_cdk_nag_found_nothing_that_is_not_explained(smallest_assembly: Assembly):
    report = json.loads((smallest_assembly.directory / "validation-report.json").read_text())
    assert [violation for plugin in report["pluginReports"] for violation in plugin["violations"]] == []


def test_a_deployment_is_not_judged_again(run_python: Callable[..., subprocess.CompletedProcess[str]]):
    """cdk-nag takes most of the time of a synth, and each command of the CDK synthesizes."""
    finished = run_python(
        "import aws_cdk as cdk, infra.application as application; from infra.settings import Settings\n"
        "judged = []; application.judge = judged.append\n"
        "for nag in (False, True):\n    application.judge_if_asked(cdk.App(), Settings(nag=nag))\n"
        "assert len(judged) == 1"
    )
    assert finished.returncode == 0, finished.stderr
    makefile = (ROOT / "Makefile").read_text()
    assert "cdk synth --quiet -c nag=true" in makefile, "CI judges"


def test_no_stack_exports(assembly: Assembly, smallest_assembly: Assembly):
    """AWS does not remove an export while a stack imports it: the exporting stack could not be changed."""
    for each in (assembly, smallest_assembly):
        assert "Fn::ImportValue" not in json.dumps(each.templates)
        assert not [output for output in _outputs(each) if "Export" in output]


def _outputs(assembly: Assembly) -> list[dict[str, Any]]:
    return [output for template in assembly.templates.values() for output in template.get("Outputs", {}).values()]


def test_parameters_are_made_before_they_are_read(assembly: Assembly, smallest_assembly: Assembly):
    for each in (assembly, smallest_assembly):
        makers = {resource.properties["Name"]: resource.stack for resource in each.resources("AWS::SSM::Parameter")}
        assert makers
        assert NO_VPC_ID not in json.dumps(each.templates)
        for stack, template in each.templates.items():
            read = {parameter["Default"] for parameter in template["Parameters"].values()} - {
                "/cdk-bootstrap/hnb659fds/version"
            }
            assert {makers[name] for name in read} <= _needed_by(each, stack), stack


def _needed_by(assembly: Assembly, stack: str) -> set[str]:
    """The stacks that are deployed before this one."""
    manifest = json.loads((assembly.directory / "manifest.json").read_text())["artifacts"]
    direct = {each for each in manifest[stack]["dependencies"] if each in assembly.templates}
    return direct.union(*(_needed_by(assembly, each) for each in direct))


def test_alarms_exist_before_what_they_watch(assembly: Assembly, smallest_assembly: Assembly):
    """A deployment that fails half-way leaves nothing that is not watched."""
    for each in (assembly, smallest_assembly):
        for resource in each.resources("AWS::Lambda::Function") + each.resources("AWS::ECS::Service"):
            if resource.type == "AWS::ECS::Service" or "FunctionName" in resource.properties:
                assert "HeadraceObservability" in _needed_by(each, resource.stack), resource.logical_id


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

    protected = {name for name in STACKS if manifest[name]["properties"].get("terminationProtection")}
    assert protected == DATA_STACKS
    for stack in STACKS - protected:
        assert protected <= _needed_by(assembly, stack), stack


def test_two_stacks_destroy_all_but_the_data(assembly: Assembly, smallest_assembly: Assembly):
    """As docs/operating/deploy.md says: the others depend on these."""
    for each in (assembly, smallest_assembly):
        for stack in set(each.templates) - DATA_STACKS - {"HeadraceNetwork", "HeadraceQueues"}:
            assert {"HeadraceNetwork", "HeadraceQueues"} & _needed_by(each, stack), stack


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

    of_choices = {
        _s3_deletion_code(smallest_assembly),
        *(path.parent.name for path in smallest_assembly.directory.glob("asset.*/cryptography")),
        *(path.parents[2].name for path in smallest_assembly.directory.glob(f"asset.*/{GRPC_BRIDGE.dockerfile}")),
    }
    assert len(of_choices) == 3
    assert assets(smallest_assembly) - of_choices <= assets(assembly)
    # The bundles of the functions and of those for the network, and the context of the stores.
    assert len(assets(smallest_assembly) - of_choices) == 3

"""TLS is an opt-in: with it an authority whose key only one function uses, and a certificate for each name."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable

import pytest
from cdk_assembly import Assembly, with_zone_ids

from functions.deployment.certificates import PATIENCE_MS
from functions.deployment.custom_resources import TIME_LEFT_MIN_MS
from functions.environment import Environment
from headrace import topology
from headrace.adapters.leaf_secrets import tls_settings
from headrace.certificate_names import certificate_labels, dns_name, secret_name
from headrace.codec.certificates import parse_leaf_secret
from headrace.model.errors import CorruptError
from headrace.model.tls_modes import TlsMode, is_store_name
from infra.packaging.lambda_bundle import CERTIFICATES
from segmentstore_fargate.config import process_environments, read_config

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceCertificates"
LABELS = certificate_labels(2, has_bridge=True)


def test_without_tls_nothing_is_added(assembly: Assembly):
    assert STACK not in assembly.templates
    assert "HEADRACE_TLS" not in json.dumps(assembly.templates)
    assert assembly.resources("AWS::ServiceDiscovery::Service") == []
    assert assembly.resources("AWS::KMS::Key") == []


def test_only_the_function_signs(smallest_assembly: Assembly):
    key = smallest_assembly.only("AWS::KMS::Key").properties
    assert (key["KeySpec"], key["KeyUsage"], key["PendingWindowInDays"]) == ("ECC_NIST_P256", "SIGN_VERIFY", 30)
    administer, sign = key["KeyPolicy"]["Statement"]
    assert sign["Action"] == ["kms:GetPublicKey", "kms:Sign"]
    function = smallest_assembly.named("AWS::Lambda::Function", "FunctionName")["headrace-certificates"]
    assert sign["Principal"]["AWS"] == function.properties["Role"]
    assert not [action for action in administer["Action"] if "Sign" in action or "*" in action or "Grant" in action]


def test_no_template_knows_a_key(smallest_assembly: Assembly):
    secrets = smallest_assembly.named("AWS::SecretsManager::Secret", "Name")
    assert {secret_name(label) for label in LABELS} <= set(secrets)
    for label in LABELS:
        properties = secrets[secret_name(label)].properties
        assert "SecretString" not in properties
        generated = properties["GenerateSecretString"]
        text = json.dumps(json.loads(generated["SecretStringTemplate"]) | {generated["GenerateStringKey"]: "random"})
        with pytest.raises(CorruptError):
            parse_leaf_secret(text)


def test_the_function_reads_its_variables(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    function = smallest_assembly.named("AWS::Lambda::Function", "FunctionName")["headrace-certificates"].properties
    variables = {name: as_text(value) for name, value in function["Environment"]["Variables"].items()}
    environment, key = Environment(variables), smallest_assembly.only("AWS::KMS::Key")
    assert environment.certificate_labels == LABELS
    assert environment.authority_keys == (f"<{key.logical_id}.Arn>",)
    assert environment.metadata_table == topology.METADATA_TABLE.name
    assert function["Handler"] == topology.CERTIFICATES.handler


def test_the_function_is_called_daily(smallest_assembly: Assembly):
    rule = smallest_assembly.only("AWS::Events::Rule", STACK).properties
    assert rule["ScheduleExpression"] == "rate(1 day)"
    (target,) = rule["Targets"]
    called = smallest_assembly.get(STACK, target["Arn"]).properties
    assert called["FunctionName"] == "headrace-certificates"


def test_the_stack_waits_for_the_certificates(smallest_assembly: Assembly):
    issued = smallest_assembly.only("Custom::HeadraceCertificates", STACK)
    made = smallest_assembly.resources("AWS::SecretsManager::Secret", STACK)
    needed = [*made, smallest_assembly.only("AWS::KMS::Key")]
    assert {each.logical_id for each in needed} <= set(issued.attributes["DependsOn"])
    function = smallest_assembly.get(STACK, issued.properties["ServiceToken"]).properties
    assert function["FunctionName"] == "headrace-certificates"
    assert int(issued.properties["ServiceTimeout"]) == function["Timeout"]
    assert function["Timeout"] * 1000 - TIME_LEFT_MIN_MS > PATIENCE_MS
    assert issued.properties["Labels"] == ",".join(LABELS)


def test_stores_have_certificates_before_they_show_them(smallest_assembly: Assembly):
    manifest = json.loads((smallest_assembly.directory / "manifest.json").read_text())["artifacts"]
    for stack in ("HeadraceSegmentStores", "HeadraceGrpcBridge"):
        assert STACK in manifest[stack]["dependencies"]


def test_each_store_has_its_name_and_secret(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    tasks = smallest_assembly.resources("AWS::ECS::TaskDefinition", "HeadraceSegmentStores")
    named = smallest_assembly.resources("AWS::ServiceDiscovery::Service", "HeadraceSegmentStores")
    assert len(tasks) == len(named) == 2
    for label, task in zip(LABELS, tasks, strict=False):
        (container,) = task.properties["ContainerDefinitions"]
        variables = {each["Name"]: as_text(each["Value"]) for each in container["Environment"]}
        settings = tls_settings(variables)
        assert (settings.mode, settings.name) == (TlsMode.REQUIRED, dns_name(label))
        assert is_store_name(settings.name, settings.name)
        assert variables["HEADRACE_TLS_SECRET"] == secret_name(label)
    assert sorted(each.properties["Name"] for each in named) == ["store-0", "store-1"]
    for each in named:
        assert each.properties["DnsConfig"]["DnsRecords"] == [{"TTL": 5, "Type": "A"}]


def test_stores_accept_their_variables(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    for task in smallest_assembly.resources("AWS::ECS::TaskDefinition", "HeadraceSegmentStores"):
        (container,) = task.properties["ContainerDefinitions"]
        variables = {each["Name"]: with_zone_ids(as_text(each["Value"])) for each in container["Environment"]}
        for environment in process_environments(variables):
            assert read_config(environment).tls.mode is TlsMode.REQUIRED


def test_the_names_are_in_a_zone_of_the_network(smallest_assembly: Assembly):
    zone = smallest_assembly.only("AWS::ServiceDiscovery::PrivateDnsNamespace", STACK).properties
    assert zone["Name"] == "headrace.internal"


def test_failures_raise_alarms(assembly: Assembly, smallest_assembly: Assembly):
    alarms = smallest_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")
    names = {"headrace-certificates-errors", "headrace-certificates-stopped", "headrace-authority-ends-soon"}
    assert names <= set(alarms)
    assert not names & set(assembly.named("AWS::CloudWatch::Alarm", "AlarmName"))
    stopped = alarms["headrace-certificates-stopped"].properties
    assert (stopped["Period"], stopped["TreatMissingData"]) == (86_400, "breaching")
    ending = alarms["headrace-authority-ends-soon"].properties
    assert (ending["MetricName"], ending["Namespace"]) == ("AuthorityEndsSoon", "Headrace")


def test_only_this_function_has_the_large_package(smallest_assembly: Assembly):
    functions = smallest_assembly.named("AWS::Lambda::Function", "FunctionName")
    own = functions["headrace-certificates"].properties["Code"]["S3Key"]
    assert [name for name, each in functions.items() if each.properties["Code"]["S3Key"] == own] == [
        "headrace-certificates"
    ]
    bundles = [each.parents[1] for each in smallest_assembly.directory.glob("asset.*/functions/__init__.py")]
    with_package = [each for each in bundles if (each / "cryptography").is_dir()]
    assert (len(bundles), len(with_package)) == (3, 1)
    (bundle,) = with_package
    assert (bundle / "functions" / "deployment" / "certificates.py").is_file()
    assert {path.name for path in (bundle / "botocore" / "data").iterdir() if path.is_dir()} == CERTIFICATES.services
    native = list((bundle / "cryptography").rglob("*.so"))
    assert native
    assert all(stat.S_ISREG(each.stat().st_mode) for each in native)
    # The machine of an ELF file: 183 is ARM of 64 bits.
    assert {int.from_bytes(each.read_bytes()[18:20], "little") for each in native} == {183}

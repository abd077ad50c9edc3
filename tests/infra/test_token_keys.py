"""Delegation tokens are an opt-in: with them a secret that no template knows, without them nothing of them."""

from __future__ import annotations

import json

import pytest
from cdk_assembly import Assembly

from functions.deployment.custom_resources import TIME_LEFT_MIN_MS
from functions.deployment.token_key_gate import PATIENCE_MS
from headrace.codec.delegation_tokens import stored_keys

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK = "HeadraceTokenKeys"


def test_without_tokens_nothing_is_added(assembly: Assembly):
    text = json.dumps(assembly.templates)
    assert STACK not in assembly.templates
    assert "HEADRACE_TOKEN" not in text
    assert "Custom::HeadraceSigningKey" not in text


def test_no_template_knows_a_key(smallest_assembly: Assembly):
    secret = smallest_assembly.only("AWS::SecretsManager::Secret", STACK).properties
    assert "SecretString" not in secret
    generated = secret["GenerateSecretString"]
    template = json.loads(generated["SecretStringTemplate"])
    assert stored_keys(json.dumps(template | {generated["GenerateStringKey"]: "random"})) is None


def test_keys_are_rotated_at_once_and_each_month(smallest_assembly: Assembly):
    rotation = smallest_assembly.only("AWS::SecretsManager::RotationSchedule", STACK)
    secret = smallest_assembly.get(STACK, rotation.properties["SecretId"])
    function = smallest_assembly.get(STACK, rotation.properties["RotationLambdaARN"])
    assert secret.type == "AWS::SecretsManager::Secret"
    assert function.properties["FunctionName"] == "headrace-token-keys"
    assert function.properties["Handler"] == "functions.deployment.token_keys.handler"
    assert rotation.properties["RotationRules"] == {"AutomaticallyAfterDays": 30}
    assert rotation.properties["RotateImmediatelyOnUpdate"] is True
    permission = smallest_assembly.only("AWS::Lambda::Permission", STACK)
    assert permission.properties["Principal"] == "secretsmanager.amazonaws.com"
    assert permission.properties["SourceAccount"] == {"Ref": "AWS::AccountId"}
    assert permission.logical_id in rotation.attributes["DependsOn"]


def test_the_stack_waits_for_a_key_that_signs(smallest_assembly: Assembly):
    gate = smallest_assembly.only("Custom::HeadraceSigningKey", STACK)
    rotation = smallest_assembly.only("AWS::SecretsManager::RotationSchedule", STACK)
    assert rotation.logical_id in gate.attributes["DependsOn"]
    function = smallest_assembly.get(STACK, gate.properties["ServiceToken"]).properties
    assert function["FunctionName"] == "headrace-token-key-gate"
    assert function["Environment"]["Variables"]["HEADRACE_TOKEN_KEYS_SECRET"] == "headrace-token-keys"
    assert int(gate.properties["ServiceTimeout"]) == function["Timeout"]
    assert (function["Timeout"] * 1000 - TIME_LEFT_MIN_MS) + 1 > PATIENCE_MS


def test_callers_have_tokens_before_stores_demand_them(smallest_assembly: Assembly):
    manifest = json.loads((smallest_assembly.directory / "manifest.json").read_text())["artifacts"]
    callers = {"HeadraceControllerApi", "HeadraceProcessors"}
    assert callers | {STACK} <= set(manifest["HeadraceSegmentStores"]["dependencies"])
    for caller in callers:
        assert STACK in manifest[caller]["dependencies"]


def test_a_failed_rotation_raises_an_alarm(assembly: Assembly, smallest_assembly: Assembly):
    name = "headrace-token-keys-errors"
    alarm = smallest_assembly.named("AWS::CloudWatch::Alarm", "AlarmName")[name].properties
    assert alarm["Dimensions"] == [{"Name": "FunctionName", "Value": "headrace-token-keys"}]
    assert name not in assembly.named("AWS::CloudWatch::Alarm", "AlarmName")


def test_cdk_nag_found_nothing_that_is_not_explained(smallest_assembly: Assembly):
    report = json.loads((smallest_assembly.directory / "validation-report.json").read_text())
    assert [violation for each in report["pluginReports"] for violation in each["violations"]] == []

"""The canary: on unless it is switched off, once a minute, in the network of the stores, with few rights."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
from api_in_memory import ApiInMemory
from cdk_assembly import Assembly

import functions.environment
from functions.environment import Environment
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_keys import token_key_source
from headrace.client import LogClass, ScalingPolicy, connect
from headrace.doctor.canary import RETENTION
from headrace.ports.metadata_store import Check, Create, Write
from infra.constructs.least_privilege import CANARY_PARTITIONS

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]
STACK, NAME = "HeadraceSegmentStores", "headrace-canary"


def _function(assembly: Assembly) -> Any:
    return assembly.named("AWS::Lambda::Function", "FunctionName")[NAME]


def _statements(assembly: Assembly) -> dict[str, dict[str, Any]]:
    role = assembly.get(STACK, _function(assembly).properties["Role"]).properties
    found = [each for policy in role["Policies"] for each in policy["PolicyDocument"]["Statement"]]
    return {each["Sid"]: each for each in found}


def test_the_canary_is_as_declared(default_assembly: Assembly):
    function, declared = _function(default_assembly), topology.CANARY
    properties = function.properties
    assert function.stack == STACK
    assert (properties["Handler"], properties["Description"]) == (declared.handler, declared.description)
    assert (properties["MemorySize"], properties["Timeout"]) == (declared.memory_mb, declared.timeout_s)
    assert "VpcConfig" in properties
    assert "ReservedConcurrentExecutions" not in properties


def test_it_is_called_once_a_minute_and_not_again(default_assembly: Assembly, as_text: Callable[[object], str]):
    rule = default_assembly.named("AWS::Events::Rule", "Name")[NAME].properties
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    (target,) = rule["Targets"]
    assert default_assembly.get(STACK, target["Arn"]).properties["FunctionName"] == NAME
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
    (limits,) = [
        each.properties
        for each in default_assembly.resources("AWS::Lambda::EventInvokeConfig", STACK)
        if default_assembly.get(STACK, each.properties["FunctionName"]).properties["FunctionName"] == NAME
    ]
    assert (limits["MaximumEventAgeInSeconds"], limits["MaximumRetryAttempts"]) == (60, 0)


def test_it_comes_after_the_stores(default_assembly: Assembly):
    services = {each.logical_id for each in default_assembly.resources("AWS::ECS::Service", STACK)}
    assert services <= set(_function(default_assembly).attributes["DependsOn"])


def test_it_is_switched_off(smallest_assembly: Assembly):
    for template in smallest_assembly.templates.values():
        assert "canary" not in str(template).lower()


def test_it_learns_what_it_reads(default_assembly: Assembly, as_text: Callable[[object], str]):
    variables = {
        name: as_text(value)
        for name, value in _function(default_assembly).properties["Environment"]["Variables"].items()
    }
    environment = Environment(variables)
    assert environment.all_containers == topology.CONTAINER_COUNT
    assert environment.metadata_table == topology.METADATA_TABLE.name
    assert environment.requests_queue_url.endswith(topology.REQUESTS_QUEUE.name)
    assert token_key_source(variables, ManualClock()) is not None
    assert variables["POWERTOOLS_METRICS_DISABLED"] == "true"
    assert variables["POWERTOOLS_SERVICE_NAME"] == topology.CANARY.name


def test_it_has_the_rights_to_make_its_streams_and_no_more(default_assembly: Assembly):
    statements = _statements(default_assembly)
    assert set(statements) == {
        *("MetadataRead", "RequestsSend", "TokenKeysRead", "CreateOwnStreams", "WriteLogs"),
        *("LambdaAttachesInterfaces", "CodeDoesNot"),
    }
    own = statements["CreateOwnStreams"]
    assert own["Action"] == ["dynamodb:ConditionCheckItem", "dynamodb:PutItem"]
    assert own["Condition"] == {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(CANARY_PARTITIONS)}}


@pytest.mark.parametrize("log_class", LogClass)
def test_a_creation_writes_what_its_rights_cover(monkeypatch: pytest.MonkeyPatch, log_class: LogClass):
    """The writes of the handlers that the canary calls, as they are; and of another scope they are not covered."""
    monkeypatch.setenv(functions.environment.S3_CONTAINERS, "2")
    api = ApiInMemory(monkeypatch)
    written: list[Write] = []
    write = api.store.write

    def noted(*writes: Write) -> None:
        written.extend(writes)
        write(*writes)

    monkeypatch.setattr(api.store, "write", noted)
    work, api.works = api.work, False
    with connect("http://controller", transport=api.transport()) as client:
        for scope in (topology.CANARY_SCOPE, "shop"):
            written.clear()
            client.admin.create_scope(scope)
            client.admin.create_stream(
                scope,
                "canary",
                scaling=ScalingPolicy.fixed(3),
                retention=RETENTION,
                acknowledged_by=log_class,
                wait=False,
            )
            partitions = {each.key.partition for each in written}
            covered = {each for each in partitions if any(fnmatchcase(each, pattern) for pattern in CANARY_PARTITIONS)}
            assert {type(each) for each in written} <= {Create, Check}
            assert (covered == partitions) is (scope == topology.CANARY_SCOPE), partitions - covered
            work()

"""Every function of the topology is deployed as declared, once, from one bundle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cdk_assembly import Assembly

from headrace import topology
from infra.packaging.lambda_bundle import NETWORK

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def functions(assembly: Assembly):
    return assembly.named("AWS::Lambda::Function", "FunctionName")


def test_the_functions_are_those_of_the_topology(functions, smallest_assembly: Assembly):
    deployed = {f"headrace-{declared.name}" for declared in (*topology.FUNCTIONS, topology.PREFIX_LISTS)}
    usual = {f"headrace-{declared.name}" for declared in (topology.REPLICATION_GATE, topology.CANARY)}
    assert set(functions) == deployed | usual
    secured = (topology.TOKEN_KEY_ROTATION, topology.TOKEN_KEY_GATE, topology.CERTIFICATES)
    more = {f"headrace-{each.name}" for each in secured}
    assert set(smallest_assembly.named("AWS::Lambda::Function", "FunctionName")) == deployed | more


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_function_is_as_declared(functions, declared):
    properties = functions[f"headrace-{declared.name}"].properties
    assert properties["Handler"] == declared.handler
    assert properties["MemorySize"] == declared.memory_mb
    assert properties["Timeout"] == declared.timeout_s
    assert properties["Description"] == declared.description
    assert properties["Runtime"] == "python3.13"
    assert properties["Architectures"] == ["arm64"]
    assert properties.get("ReservedConcurrentExecutions", 0) == declared.reserved_concurrency
    assert ("VpcConfig" in properties) == declared.reaches_segment_stores


def test_messages_that_come_back_are_no_runaway_loop(assembly: Assembly, functions, as_text: Callable[[object], str]):
    """What the templates let each function send, and what their mappings start: followed until nothing is added."""
    started_by = {
        as_text(mapping.properties["EventSourceArn"]).rpartition(":")[2]: assembly.get(
            mapping.stack, mapping.properties["FunctionName"]
        ).properties["FunctionName"]
        for mapping in assembly.resources("AWS::Lambda::EventSourceMapping")
    }

    def starts(name: str) -> set[str]:
        role = assembly.get(functions[name].stack, functions[name].properties["Role"])
        statements = [s for policy in role.properties["Policies"] for s in policy["PolicyDocument"]["Statement"]]
        sends = [s for s in statements if s["Action"] == "sqs:SendMessage"]
        return {started_by[as_text(s["Resource"]).rpartition(":")[2]] for s in sends}

    reached = {name: starts(name) for name in functions}
    for _ in functions:
        reached = {name: found.union(*(reached[other] for other in found)) for name, found in reached.items()}
    loops = {name for name, found in reached.items() if name in found}
    assert {"headrace-ticks", "headrace-stream-requests"} <= loops
    allowed = {name for name, each in functions.items() if each.properties.get("RecursiveLoop") == "Allow"}
    assert allowed == loops


def test_ticks_and_dead_letters_keep_executions_of_their_own(functions, assembly: Assembly):
    """A burst of API calls can take every other execution of the account; fewer than the queues start are throttled."""
    reserved = {declared.name: declared.reserved_concurrency for declared in topology.FUNCTIONS}
    assert {name for name, count in reserved.items() if count} == {
        *("schedule-ticks", "ticks", "dead-letter-queues", "audit-log")
    }
    started: dict[str, int] = {}
    for mapping in assembly.resources("AWS::Lambda::EventSourceMapping"):
        name = assembly.get(mapping.stack, mapping.properties["FunctionName"]).properties["FunctionName"]
        started[name] = started.get(name, 0) + mapping.properties["ScalingConfig"]["MaximumConcurrency"]
    for name in ("headrace-ticks", "headrace-dead-letter-queues"):
        assert functions[name].properties["ReservedConcurrentExecutions"] >= started[name]


def test_an_account_with_few_executions_reserves_none(smallest_assembly: Assembly):
    for function in smallest_assembly.resources("AWS::Lambda::Function", "HeadraceProcessors"):
        assert "ReservedConcurrentExecutions" not in function.properties


def test_all_functions_share_one_bundle(functions):
    own = {f"headrace-{each.name}" for each in topology.DEPLOYMENT_FUNCTIONS if each.has_own_bundle}
    keys = {function.properties["Code"]["S3Key"] for name, function in functions.items() if name not in own}
    assert len(keys) == 1


def test_the_functions_of_the_network_have_their_models(assembly: Assembly, functions):
    """The model of EC2 is as large as those of all other services together: no other function unpacks it."""
    shared = functions["headrace-ticks"].properties["Code"]["S3Key"]
    assert functions["headrace-prefix-lists"].properties["Code"]["S3Key"] != shared
    bundles = [each.parents[1] for each in assembly.directory.glob("asset.*/functions/__init__.py")]
    with_model = [each for each in bundles if (each / "botocore" / "data" / "ec2").is_dir()]
    assert (len(bundles), len(with_model)) == (3, 1)
    (bundle,) = with_model
    assert {path.name for path in (bundle / "botocore" / "data").iterdir() if path.is_dir()} == NETWORK.services
    for name in ("prefix_lists.py", "external_targets.py"):
        assert (bundle / "functions" / "deployment" / name).is_file()


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_a_function_learns_only_of_what_it_may_use(functions, declared, as_text: Callable[[object], str]):
    variables = functions[f"headrace-{declared.name}"].properties["Environment"]["Variables"]
    expected = {
        "HEADRACE_METADATA_TABLE": ("metadata:", "headrace-metadata"),
        "HEADRACE_CHUNK_BUCKET": ("chunks:", "headrace-chunks-<AWS::AccountId>-<AWS::Region>"),
        "HEADRACE_REQUESTS_QUEUE_URL": ("requests:", "/headrace-requests.fifo"),
        "HEADRACE_TABLES_QUEUE_URL": ("tables:", "/headrace-tables.fifo"),
        "HEADRACE_COMMITS_QUEUE_URL": ("commits:", "/headrace-commits.fifo"),
        "HEADRACE_ABORTS_QUEUE_URL": ("aborts:", "/headrace-aborts.fifo"),
        "HEADRACE_TICKS_QUEUE_URL": ("ticks:", "/headrace-ticks"),
    }
    for name, (word, ending) in expected.items():
        granted = any(grant.startswith(word) for grant in declared.grants)
        assert (name in variables) == granted
        if granted:
            assert as_text(variables[name]).endswith(ending)


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_logs_are_json_and_expire(assembly: Assembly, functions, declared):
    function = functions[f"headrace-{declared.name}"]
    assert function.properties["LoggingConfig"]["LogFormat"] == "JSON"
    group = assembly.get(function.stack, function.properties["LoggingConfig"]["LogGroup"])
    assert group.properties["LogGroupName"] == f"/aws/lambda/headrace-{declared.name}"
    assert group.properties["RetentionInDays"] <= 90

"""What the templates set is what the processes read: their own readers are run on the variables of the templates."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from cdk_assembly import Assembly, with_zone_ids
from syntax_trees import syntax_tree

import functions.environment
import headrace.adapters.log_lines
import headrace.adapters.token_keys
import headrace.deployment_defaults
import headrace.topology.functions
import segmentstore_fargate.config
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_keys import token_key_source
from headrace.topology import SEGMENT_STORES
from headrace.zones import UNKNOWN_ZONE

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def store_variables(assembly: Assembly, as_text: Callable[[object], str]):
    """Variables of every store, CloudFormation values as text, with what AWS and the supervisor add.

    Only the ids of zones are what AWS would have: stores check them.
    """
    added = {"HEADRACE_STORE_ID": "store", "HEADRACE_CLUSTER_ID": "0" * 32}
    return [
        {each["Name"]: with_zone_ids(as_text(each["Value"])) for each in container["Environment"]}
        | added
        | {each["Name"]: "x" * 64 for each in container["Secrets"]}
        for task in assembly.resources("AWS::ECS::TaskDefinition")
        for container in task.properties["ContainerDefinitions"]
    ]


def test_stores_accept_their_variables_and_share_all_containers(store_variables):
    module = segmentstore_fargate.config
    configs = [
        module.read_config(each) for variables in store_variables for each in module.process_environments(variables)
    ]
    taken = sorted(container for config in configs for container in config.containers)
    assert taken == list(range(topology.CONTAINER_COUNT))
    for process, config in enumerate(configs):
        assert config.zone_networks.zone_of("8.8.8.8") == UNKNOWN_ZONE
        assert config.zone in config.zone_networks.zones
        process %= SEGMENT_STORES.processes
        assert config.listen_port == SEGMENT_STORES.wire_port + process
        assert config.health_port == SEGMENT_STORES.health_port + process
        assert config.replica_port == SEGMENT_STORES.replica_port + process
        assert config.copies == SEGMENT_STORES.copies
        assert config.advertised_host is None, "the task asks ECS for its own address"
        assert config.stop_deadline_s < SEGMENT_STORES.stop_timeout_s
        assert config.cache_bytes < SEGMENT_STORES.memory_mb * 1024 * 1024


def test_stores_are_told_nothing_that_they_do_not_read(store_variables):
    known = _strings_of(segmentstore_fargate.config) | _strings_of(headrace.adapters.log_lines)
    for variables in store_variables:
        assert {name for name in variables if name.startswith("HEADRACE_")} <= known


def test_processes_accept_their_settings_of_tokens(smallest_assembly: Assembly, as_text: Callable[[object], str]):
    functions_ = smallest_assembly.named("AWS::Lambda::Function", "FunctionName")
    found = {
        declared.name: {
            name: as_text(value)
            for name, value in functions_[f"headrace-{declared.name}"].properties["Environment"]["Variables"].items()
        }
        for declared in topology.FUNCTIONS
    }
    found |= {
        task.logical_id: {
            each["Name"]: as_text(each["Value"])
            for container in task.properties["ContainerDefinitions"]
            for each in container["Environment"]
        }
        for task in smallest_assembly.resources("AWS::ECS::TaskDefinition")
    }
    assert {variables["HEADRACE_TOKENS"] for variables in found.values()} == {"required"}
    readers = {name for name, variables in found.items() if "HEADRACE_TOKEN_KEYS_SECRET" in variables}
    assert all(token_key_source(found[name], ManualClock()) is not None for name in readers)
    stores = set(found) - {declared.name for declared in topology.FUNCTIONS}
    assert readers == stores | {each.name for each in topology.FUNCTIONS if "token-keys:read" in each.grants}
    known = _strings_of(headrace.adapters.token_keys) | _strings_of(headrace.deployment_defaults)
    for variables in found.values():
        assert {name for name in variables if name.startswith("HEADRACE_TOKEN")} <= known


@pytest.mark.parametrize("declared", topology.FUNCTIONS, ids=lambda declared: declared.name)
def test_functions_are_told_nothing_that_they_do_not_read(
    assembly: Assembly, declared, as_text: Callable[[object], str]
):
    function = assembly.named("AWS::Lambda::Function", "FunctionName")[f"headrace-{declared.name}"]
    variables = {name: as_text(value) for name, value in function.properties["Environment"]["Variables"].items()}
    environment = functions.environment.Environment(variables)
    assert environment.container_count == topology.CONTAINER_COUNT
    known = _strings_of(functions.environment) | _strings_of(headrace.topology.functions)
    known |= _strings_of(headrace.deployment_defaults)
    assert {name for name in variables if name.startswith("HEADRACE_")} <= known


def _strings_of(module) -> set[str]:
    """String constants in the source of a module."""
    with open(module.__file__, encoding="utf-8") as source:
        tree = syntax_tree(source.read())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}

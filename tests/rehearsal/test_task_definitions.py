"""What the rehearsal takes from a task definition, and which variables differ."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from infra.packaging.image_context import GRPC_BRIDGE, SEGMENT_STORE
from rehearsal.task_definitions import TaskDefinition, UnknownDefinitionError, entrypoint, local_variables

ROOT = Path(__file__).resolve().parents[2]


def description(**container: Any) -> dict[str, Any]:
    usual = {
        "image": "registry/assets:0123abcd",
        "environment": [{"name": "HEADRACE_COPIES", "value": "3"}],
        "secrets": [{"name": "HEADRACE_REPLICA_SECRET", "valueFrom": "arn:of:secret"}],
        "healthCheck": {"command": ["CMD", "python", "-m", "probe"], "interval": 30, "timeout": 10, "retries": 10},
        "stopTimeout": 120,
    }
    return {
        "taskDefinitionArn": "arn:task-definition/store:2",
        "revision": 2,
        "taskRoleArn": "arn:task",
        "executionRoleArn": "arn:execution",
        "containerDefinitions": [{name: value for name, value in (usual | container).items() if value is not None}],
    }


def test_a_definition_is_read():
    definition = TaskDefinition.described(description())
    assert definition.image_tag == "0123abcd"
    assert definition.environment == {"HEADRACE_COPIES": "3"}
    assert definition.secrets == {"HEADRACE_REPLICA_SECRET": "arn:of:secret"}
    assert definition.health_check.command == ("python", "-m", "probe")
    assert definition.health_check.start_period_s == 0
    assert definition.stop_timeout_s == 120


@pytest.mark.parametrize(
    "container",
    [{"healthCheck": None}, {"stopTimeout": None}, {"healthCheck": {"command": ["CMD-SHELL", "true"]}}],
    ids=["no check", "no time-out", "shell"],
)
def test_a_definition_without_a_needed_part_is_refused(container: dict[str, Any]):
    with pytest.raises(UnknownDefinitionError):
        TaskDefinition.described(description(**container))


def test_two_containers_are_refused():
    two = description()
    two["containerDefinitions"] *= 2
    with pytest.raises(UnknownDefinitionError, match="not one container"):
        TaskDefinition.described(two)


def test_only_ports_host_and_directory_differ():
    ports = itertools.count(5_000)
    declared = {
        "HEADRACE_LISTEN_HOST": "0.0.0.0",
        "HEADRACE_LISTEN_PORT": "12345",
        "HEADRACE_HEALTH_PORT": "12545",
        "HEADRACE_DATA_DIR": "/var/lib/headrace",
        "HEADRACE_COPIES": "1",
        "HEADRACE_PROCESSES": "1",
    }
    assert local_variables(declared, "/data", lambda: next(ports)) == {
        "HEADRACE_LISTEN_HOST": "127.0.0.1",
        "HEADRACE_LISTEN_PORT": "5000",
        "HEADRACE_HEALTH_PORT": "5001",
        "HEADRACE_DATA_DIR": "/data",
    }


def test_several_processes_are_refused():
    with pytest.raises(UnknownDefinitionError):
        local_variables({"HEADRACE_PROCESSES": "2"}, "/data", lambda: 1)


@pytest.mark.parametrize(
    ("image", "program"),
    [(SEGMENT_STORE, "segmentstore_fargate.supervised"), (GRPC_BRIDGE, "headrace.bridge")],
    ids=["store", "bridge"],
)
def test_the_programs_of_the_images_are_known(image: Any, program: str):
    assert entrypoint((ROOT / image.dockerfile).read_text()) == ("python", "-m", program)


def test_a_dockerfile_without_a_program_is_refused():
    with pytest.raises(UnknownDefinitionError):
        entrypoint("FROM scratch\n")

"""What a task definition declares, and the few variables that must differ where there is one network and one disk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rehearsal.task_decisions import HealthCheck

LOOPBACK: Final = "127.0.0.1"
HOSTS: Final = ("HEADRACE_LISTEN_HOST", "HEADRACE_GRPC_LISTEN_HOST")
PORTS: Final = (
    "HEADRACE_LISTEN_PORT",
    "HEADRACE_HEALTH_PORT",
    "HEADRACE_REPLICA_PORT",
    "HEADRACE_GRPC_LISTEN_PORT",
    "HEADRACE_GRPC_HEALTH_PORT",
)
DATA_DIRECTORY: Final = "HEADRACE_DATA_DIR"
PROCESSES: Final = "HEADRACE_PROCESSES"
_ENTRYPOINT: Final = re.compile(r"^ENTRYPOINT (\[.*\])$", re.MULTILINE)


class UnknownDefinitionError(ValueError):
    """A task definition has a form that the rehearsal cannot start."""


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """A task definition with one container. `secrets` are the ARNs of secrets by variable."""

    arn: str
    revision: int
    task_role: str
    execution_role: str
    image_tag: str
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    health_check: HealthCheck
    stop_timeout_s: float

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> TaskDefinition:
        """From the answer of DescribeTaskDefinition.

        Raises:
            UnknownDefinitionError: there is not exactly one container, or it has no health check or no stop time-out.
        """
        if len(description["containerDefinitions"]) != 1:
            raise UnknownDefinitionError(f"{description['taskDefinitionArn']} has not one container")
        (container,) = description["containerDefinitions"]
        for needed in ("healthCheck", "stopTimeout"):
            if needed not in container:
                raise UnknownDefinitionError(f"{description['taskDefinitionArn']} has no {needed}")
        check = container["healthCheck"]
        if check["command"][0] != "CMD":
            raise UnknownDefinitionError(f"the health check is {check['command']}, expected CMD")
        return cls(
            arn=description["taskDefinitionArn"],
            revision=int(description["revision"]),
            task_role=description["taskRoleArn"],
            execution_role=description["executionRoleArn"],
            image_tag=container["image"].rpartition(":")[2],
            environment={each["name"]: each["value"] for each in container.get("environment", ())},
            secrets={each["name"]: each["valueFrom"] for each in container.get("secrets", ())},
            health_check=HealthCheck(
                tuple(check["command"][1:]),
                float(check["interval"]),
                float(check["timeout"]),
                int(check["retries"]),
                float(check.get("startPeriod", 0)),
            ),
            stop_timeout_s=float(container["stopTimeout"]),
        )


def local_variables(declared: Mapping[str, str], data_directory: str, free_port: Callable[[], int]) -> dict[str, str]:
    """The declared variables that must differ here: hosts, ports and the data directory, and no others.

    Raises:
        UnknownDefinitionError: the task has several processes, which need ports in a row.
    """
    if declared.get(PROCESSES, "1") != "1":
        raise UnknownDefinitionError("the rehearsal runs stores of one process")
    ports = {name: str(free_port()) for name in PORTS if name in declared}
    hosts = {name: LOOPBACK for name in HOSTS if name in declared}
    data = {DATA_DIRECTORY: data_directory} if DATA_DIRECTORY in declared else {}
    return {**ports, **hosts, **data}


def entrypoint(dockerfile: str) -> tuple[str, ...]:
    """The program of an image. Raises UnknownDefinitionError: the Dockerfile has no ENTRYPOINT as a list."""
    match = _ENTRYPOINT.search(dockerfile)
    if match is None:
        raise UnknownDefinitionError("the Dockerfile has no ENTRYPOINT as a list")
    return tuple(json.loads(match[1]))

"""Looks in the AWS account whether functions or the gRPC bridge of the deployment may run: a restore needs that they
do not."""

from __future__ import annotations

from headrace import topology
from headrace.doctor.account import Account, NotThereError
from headrace.doctor.account_checks import ecs_services
from headrace.topology import Function
from headrace.topology.services import GRPC_BRIDGE

WRITES_METADATA = "metadata:write"


def running_functions(account: Account) -> list[str]:
    """The functions that write metadata and may run, because their reserved concurrency is not 0.

    Raises:
        CannotLookError: the credentials do not allow it (`lambda:GetFunctionConcurrency`).
    """
    return [name for name in map(deployed_name, writing_functions()) if _may_run(account, name)]


def running_bridges(account: Account) -> list[str]:
    """The services of the gRPC bridge that have a task, or are about to start one. A bridge that has started before the
    restore does not see its mark, and writes metadata.

    Raises:
        CannotLookError: the credentials do not allow it (`ecs:ListServices`, `ecs:DescribeServices`).
    """
    try:
        services = ecs_services(account)
    except NotThereError:
        return []
    return [
        str(each["serviceName"])
        for each in services
        if each["serviceName"].startswith(GRPC_BRIDGE.service) and (each["runningCount"] or each["desiredCount"])
    ]


def writing_functions() -> list[Function]:
    """The functions of all deployments that write metadata."""
    return [declared for declared in topology.FUNCTIONS if WRITES_METADATA in declared.grants]


def deployed_name(declared: Function) -> str:
    """The name of a function in the account."""
    return f"headrace-{declared.name}"


def _may_run(account: Account, name: str) -> bool:
    try:
        answer = account.ask("lambda", "get_function_concurrency", FunctionName=name)
    except NotThereError:
        return False
    return answer.get("ReservedConcurrentExecutions") != 0

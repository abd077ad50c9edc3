"""The targets of a load balancer of AWS: a target group for each port, which has the number of the port in its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from headrace.model.errors import HeadraceError, InvalidRequestError, ThrottledError, UnavailableError
from headrace.ports.external_targets import Target

_REMOVED: Final = "draining"
_UNHEALTHY: Final = "unhealthy"
_THROTTLES: Final = ("Throttling", "ThrottlingException", "RequestLimitExceeded")
_NO_SUCH_TARGET: Final = "InvalidTarget"
_TARGETS_PER_CALL_MAX: Final = 100


class LoadBalancingClient(Protocol):
    """The part of botocore's client for `elbv2` that is used."""

    def get_paginator(self, operation_name: str) -> Any: ...
    def describe_target_health(self, **request: Any) -> Mapping[str, Any]: ...
    def register_targets(self, **request: Any) -> Mapping[str, Any]: ...
    def deregister_targets(self, **request: Any) -> Mapping[str, Any]: ...


class LoadBalancerTargets:
    """`ports.external_targets.ExternalTargets` over the target groups of the load balancer with the ARN `balancer`.

    The names of its groups for stores are `prefix` and the number of the port.
    """

    def __init__(self, client: LoadBalancingClient, balancer: str, prefix: str) -> None:
        self._client = client
        self._name = re.compile(re.escape(prefix) + "([0-9]{1,5})", re.ASCII)
        self._balancer = balancer
        self._groups: dict[int, str] = {}

    def ports(self) -> list[int]:
        try:
            pages = self._client.get_paginator("describe_target_groups").paginate(LoadBalancerArn=self._balancer)
            groups = [group for page in pages for group in page["TargetGroups"]]
        except (BotoCoreError, ClientError) as error:
            raise _problem("the target groups", error) from error
        named = ((self._name.fullmatch(group["TargetGroupName"]), group["TargetGroupArn"]) for group in groups)
        self._groups = {int(match[1]): arn for match, arn in named if match is not None}
        return sorted(self._groups)

    def targets(self, port: int) -> dict[Target, bool]:
        try:
            answer = self._client.describe_target_health(TargetGroupArn=self._group(port))
        except (BotoCoreError, ClientError) as error:
            raise _problem(f"the targets of port {port}", error) from error
        states = {
            Target(each["Target"]["Id"], each["Target"]["Port"]): each["TargetHealth"].get("State", "")
            for each in answer["TargetHealthDescriptions"]
        }
        return {target: state == _UNHEALTHY for target, state in states.items() if state != _REMOVED}

    def add(self, port: int, target: Target) -> None:
        try:
            self._client.register_targets(TargetGroupArn=self._group(port), Targets=[_described(target)])
        except (BotoCoreError, ClientError) as error:
            raise _problem(f"a target of port {port}", error) from error

    def remove(self, port: int, targets: Iterable[Target]) -> None:
        left = [_described(target) for target in targets]
        try:
            while left:
                some, left = left[:_TARGETS_PER_CALL_MAX], left[_TARGETS_PER_CALL_MAX:]
                self._client.deregister_targets(TargetGroupArn=self._group(port), Targets=some)
        except (BotoCoreError, ClientError) as error:
            if _code(error) == _NO_SUCH_TARGET:
                return  # another run was faster; the next one finds what is left
            raise _problem(f"a target of port {port}", error) from error

    def _group(self, port: int) -> str:
        if port not in self._groups:
            raise InvalidRequestError(f"the load balancer has no target group of port {port}")
        return self._groups[port]


def _described(target: Target) -> dict[str, Any]:
    return {"Id": target.host, "Port": target.port}


def _code(error: BotoCoreError | ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _problem(what: str, error: BotoCoreError | ClientError) -> HeadraceError:
    code = _code(error)
    kind = ThrottledError if code in _THROTTLES else UnavailableError
    return kind(f"the load balancer does not serve {what}: {code or type(error).__name__}")

"""Acknowledges findings of cdk-nag, one finding at a time and never without a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from constructs import IConstruct


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Accept the finding `rule` ("AwsSolutions-L1") on `construct` and below."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def acknowledge_wildcard(construct: IConstruct, resource: str, reason: str) -> None:
    """Accept that a policy below `construct` allows actions on the pattern `resource` (an ARN with `*`, or `*`)."""
    resolved = cdk.Stack.of(construct).resolve(resource)
    acknowledge(construct, f"AwsSolutions-IAM5[Resource::{_as_nag_spells(resolved)}]", reason)


def _as_nag_spells(node: Any) -> str:
    """A resolved CloudFormation value as cdk-nag writes it into the id of a finding: `<Resource.Arn>/*`."""
    match node:
        case str():
            return node
        case {"Fn::Join": [str(delimiter), [*items]]}:
            return delimiter.join(map(_as_nag_spells, items))
        case {"Fn::GetAtt": [str(resource), str(attribute)]}:
            return f"<{resource}.{attribute}>"
        case {"Ref": str(name)}:
            return f"<{name}>"
        case Mapping():
            raise ValueError(f"cdk-nag's spelling of {node!r} is not known")
        case _:
            raise TypeError(f"{node!r} is not a CloudFormation value")

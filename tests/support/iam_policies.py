"""IAM's decision about a call, from policies as JSON. It knows no conditions, and refuses a policy that has one.

A Deny wins over every Allow, and what no statement allows is refused. `*` stands for any text and `?` for any
character, slashes and colons too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

INVOKE = "execute-api:Invoke"
_KNOWN_FIELDS = {"Sid", "Effect", "Action", "Resource"}


def allows(policies: Iterable[Mapping[str, Any]], resource: str, action: str = INVOKE) -> bool:
    """Whether IAM lets a principal with these policies do `action` on `resource`."""
    effects = {
        statement["Effect"]
        for policy in policies
        for statement in _statements(policy)
        if any(_matches(pattern, action, ignore_case=True) for pattern in _listed(statement["Action"]))
        and any(_matches(pattern, resource) for pattern in _listed(statement["Resource"]))
    }
    return "Allow" in effects and "Deny" not in effects


def _statements(policy: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = policy["Statement"]
    statements = found if isinstance(found, list) else [found]
    for statement in statements:
        if set(statement) - _KNOWN_FIELDS or statement["Effect"] not in ("Allow", "Deny"):
            raise ValueError(f"this evaluator does not know {statement}")
    return statements


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _matches(pattern: str, text: str, *, ignore_case: bool = False) -> bool:
    return _expression(pattern, re.DOTALL | (re.IGNORECASE if ignore_case else 0)).fullmatch(text) is not None


@functools.cache
def _expression(pattern: str, flags: int) -> re.Pattern[str]:
    if "${" in pattern:
        raise ValueError(f"this evaluator does not know the variables of {pattern}")
    parts = ("." if part == "?" else ".*" if part == "*" else re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.compile("".join(parts), flags)

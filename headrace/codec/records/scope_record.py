"""A scope: its entry in the list of scopes, and its guard, which tells whether it is there.

The guard outlives the scope. Its version grows with everything that happens to the name, so that a process
that read it in an earlier incarnation of the scope cannot confuse it with the present one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned

SCOPES_PARTITION = "scopes"
GUARD_SORT = "guard"

DOORS = 16
"""Creations in a scope check one of so many records, by their name, so that few meet at the same one."""


class ScopeState(StrEnum):
    """DELETING: a process is checking whether the scope is empty; creating a stream removes this mark.

    CLOSING is for good: the scope is being deleted with everything in it, and nothing is created in it any more.
    """

    OPEN = "OPEN"
    DELETING = "DELETING"
    CLOSING = "CLOSING"
    GONE = "GONE"


def guard_partition(scope: str) -> str:
    return f"scope-guard/{scope}"


def door_sort(door: int) -> str:
    """Where a door of a scope is kept: DELETING from when a deleter looks at the scope until something comes in."""
    return f"door/{door:02d}"


def guard_body(state: ScopeState) -> dict[str, Any]:
    return versioned(state=str(state))


def closing_guard_body(request_id: str) -> dict[str, Any]:
    """The guard of a scope that is being deleted with everything in it, by this request."""
    return versioned(state=str(ScopeState.CLOSING), request=request_id)


def closing_request_of_body(body: Body) -> str | None:
    """The request that deletes the scope with everything in it; None in any other state."""
    return decoded("scope", body, lambda fields: str(fields["request"]) if "request" in fields else None)


def guard_of_body(body: Body) -> ScopeState:
    return decoded("scope", body, lambda fields: ScopeState(fields["state"]))


def scope_entry_body() -> dict[str, Any]:
    return versioned()

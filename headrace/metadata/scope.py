"""A scope: its entry in the list of scopes, its guard, which tells whether the scope exists, and its doors.

The guard outlives the scope. Its version grows with each change of the scope, so that a process that read the guard in
an earlier incarnation of the scope cannot confuse it with the present one. A creation of a stream, reader group or
table checks one of the doors, chosen by name, so that concurrent creations rarely check the same record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.buckets import bucket_of_stream
from headrace.model.names import check_known_name
from headrace.ports.metadata_store import Body, Key

SCOPES_PARTITION = "scopes"
GUARD_SORT = "guard"

DOORS = 16
"""Number of doors of a scope."""


class ScopeState(StrEnum):
    """DELETING: a process checks whether the scope is empty; a creation in the scope removes this mark.

    CLOSING is final: the scope is being deleted with everything in it, and nothing is created in it any more.
    """

    OPEN = "OPEN"
    DELETING = "DELETING"
    CLOSING = "CLOSING"
    GONE = "GONE"


def guard_partition(scope: str) -> str:
    """The partition of the guard and the doors. Raises InvalidRequestError, code "invalid_name"."""
    return f"scope-guard/{check_known_name('scope', scope)}"


def door_sort(door: int) -> str:
    return f"door/{door:02d}"


def scope_guard_key(scope: str) -> Key:
    return Key(guard_partition(scope), GUARD_SORT)


def scope_door_key(scope: str, name: str) -> Key:
    """The door that a creation of a stream, reader group or table of this name checks."""
    return scope_door_keys(scope)[bucket_of_stream(f"{scope}/{name}", DOORS)]


def scope_door_keys(scope: str) -> list[Key]:
    """All doors. A door has state DELETING from the time a deleter marks the scope until the next creation."""
    partition = guard_partition(scope)
    return [Key(partition, door_sort(door)) for door in range(DOORS)]


def scope_entry_key(scope: str) -> Key:
    return Key(SCOPES_PARTITION, check_known_name("scope", scope))


def guard_body(state: ScopeState) -> dict[str, Any]:
    return versioned(state=str(state))


def closing_guard_body(request_id: str) -> dict[str, Any]:
    """The guard of a scope that is being deleted with everything in it, by this request."""
    return versioned(state=str(ScopeState.CLOSING), request=request_id)


def decode_closing_request(body: Body) -> str | None:
    """The request that deletes the scope with everything in it; None in any other state."""
    return decoded("scope", body, lambda fields: str(fields["request"]) if "request" in fields else None)


def decode_guard(body: Body) -> ScopeState:
    return decoded("scope", body, lambda fields: ScopeState(fields["state"]))


def scope_entry_body() -> dict[str, Any]:
    return versioned()

"""The guard of a scope and its doors, which keep a scope while something is created in it.

The deletion of a scope marks the guard and all doors, and then checks that the scope is empty. A creation checks the
one door to which its name belongs, and removes the marks. So either the deletion sees what was created, or it fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metadata.scope import ScopeState, decode_guard, guard_body, scope_door_key, scope_door_keys
from headrace.model.errors import IllegalStateError, NotFoundError
from headrace.ports.metadata_store import Check, Create, Record, Replace, Write


def scope_exists(guard: Record | None) -> bool:
    """Whether the scope of this guard exists."""
    return guard is not None and decode_guard(guard.body) is not ScopeState.GONE


def keep_scope(scope: str, name: str, guard: Record, door: Record | None) -> list[Write]:
    """The writes of a transaction that creates a resource of that name. They remove the marks of a deletion.

    The guard is written only if there is a mark. A door that was never marked has no record.

    Raises:
        IllegalStateError: code "scope_deleting": the scope is being deleted with everything in it.
    """
    check_not_closing(guard)
    if door is not None and decode_guard(door.body) is not ScopeState.OPEN:
        is_open = guard_body(ScopeState.OPEN)
        return [Replace(door.key, is_open, door.version), Replace(guard.key, is_open, guard.version)]
    return [Check(scope_door_key(scope, name), door.version if door else None)]


def mark_doors(scope: str, doors: Sequence[Record | None]) -> list[Write]:
    """The writes of a deletion that mark the doors; `doors` as they were read."""
    body = guard_body(ScopeState.DELETING)
    return [
        Create(key, body) if door is None else Replace(key, body, door.version)
        for key, door in zip(scope_door_keys(scope), doors, strict=True)
    ]


def check_not_closing(guard: Record) -> None:
    """Raises IllegalStateError, code "scope_deleting", if the scope is being deleted with everything in it."""
    if decode_guard(guard.body) is ScopeState.CLOSING:
        raise IllegalStateError(
            "the scope is being deleted with everything in it: wait until it is gone, then create it again",
            code="scope_deleting",
        )


def no_such_scope(scope: str) -> NotFoundError:
    return NotFoundError(f"there is no scope {scope}", details={"scope": scope})

"""A scope: its entry in the list of scopes, its guard, which tells whether the scope exists, and its creation locks.

The guard outlives the scope. Its version grows with each change of the scope, so that a process that read the guard in
an earlier incarnation of the scope cannot confuse it with the present one. A creation of a stream, reader group or
table checks one of the creation locks, chosen by name, so that concurrent creations rarely check the same record.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.backoff import bucket_of_stream
from headrace.model.errors import IllegalStateError, NotFoundError
from headrace.model.names import check_known_name
from headrace.ports.metadata_store import Body, Check, Create, Delete, Key, Record, Replace, Write

# Entries in the lists of what is in a scope: its streams with their tags, its reader groups and its tables.
#
# Each list is a partition of its own, and its sort keys are the names.


def listing_partition(scope: str) -> str:
    """The list of a scope's streams."""
    return f"scope/{check_known_name('scope', scope)}"


def listing_key(scope: str, stream: str) -> Key:
    return Key(listing_partition(scope), check_known_name("stream", stream))


def reader_groups_partition(scope: str) -> str:
    """The list of a scope's reader groups."""
    return f"scope-reader-groups/{check_known_name('scope', scope)}"


def reader_group_listing_key(scope: str, group: str) -> Key:
    return Key(reader_groups_partition(scope), check_known_name("reader group", group))


def tables_partition(scope: str) -> str:
    """The list of a scope's key-value tables."""
    return f"scope-key-value-tables/{check_known_name('scope', scope)}"


def table_listing_key(scope: str, table: str) -> Key:
    return Key(tables_partition(scope), check_known_name("key-value table", table))


def listing_body(tags: tuple[str, ...]) -> dict[str, Any]:
    return versioned(tags=list(tags))


def decode_listed_tags(body: Body) -> tuple[str, ...]:
    return decoded("listing", body, lambda fields: tuple(str(tag) for tag in fields["tags"]))


def name_body() -> dict[str, Any]:
    """The body of an entry that says nothing but its name."""
    return versioned()


def listed_tags(record: Record) -> tuple[str, ...]:
    """The tags of a stream, from its entry in the list."""
    return decode_listed_tags(record.body)


SCOPES_PARTITION = "scopes"
GUARD_SORT = "guard"

CREATION_LOCKS = 16
"""Creation locks of a scope. Their records have the name `door`."""


class ScopeState(StrEnum):
    """DELETING: a process checks whether the scope is empty; a creation in the scope removes this mark.

    CLOSING is final: the scope is being deleted with everything in it, and nothing is created in it any more.
    """

    OPEN = "OPEN"
    DELETING = "DELETING"
    CLOSING = "CLOSING"
    GONE = "GONE"


def guard_partition(scope: str) -> str:
    """The partition of the guard and the creation locks. Raises InvalidRequestError, code "invalid_name"."""
    return f"scope-guard/{check_known_name('scope', scope)}"


def creation_lock_sort(lock: int) -> str:
    return f"door/{lock:02d}"


def scope_guard_key(scope: str) -> Key:
    return Key(guard_partition(scope), GUARD_SORT)


def creation_lock_key(scope: str, name: str) -> Key:
    """The creation lock that a creation of a stream, reader group or table of this name checks."""
    return creation_lock_keys(scope)[bucket_of_stream(f"{scope}/{name}", CREATION_LOCKS)]


def creation_lock_keys(scope: str) -> list[Key]:
    """All creation locks. One has state DELETING from the time a deleter marks the scope until the next creation."""
    partition = guard_partition(scope)
    return [Key(partition, creation_lock_sort(lock)) for lock in range(CREATION_LOCKS)]


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


def scope_exists(guard: Record | None) -> bool:
    """Whether a guard as it was read says that its scope exists."""
    return guard is not None and decode_guard(guard.body) is not ScopeState.GONE


def is_closing(guard: Record) -> bool:
    """Whether the scope is being deleted with everything in it."""
    return decode_guard(guard.body) is ScopeState.CLOSING


def is_marked(guard: Record, locks: Sequence[Record | None]) -> bool:
    """Whether a deleter has marked the scope and its creation locks. Versions without them marked the guard alone."""
    return all(each is not None and decode_guard(each.body) is ScopeState.DELETING for each in (guard, *locks))


def closing_request(guard: Record) -> str | None:
    """The request that deletes the scope with everything in it; None in any other state."""
    return decode_closing_request(guard.body)


def create_scope(scope: str, guard: Record | None) -> tuple[Write, ...]:
    """The writes of a new scope; `guard` is that of a former scope of the name."""
    key, body = scope_guard_key(scope), guard_body(ScopeState.OPEN)
    return (
        Create(key, body) if guard is None else Replace(key, body, guard.version),
        Create(scope_entry_key(scope), scope_entry_body()),
    )


def mark_scope(scope: str, guard: Record, locks: Sequence[Record | None]) -> list[Write]:
    """The writes that mark a scope and all its creation locks, before a deleter checks whether the scope is empty."""
    return [Replace(guard.key, guard_body(ScopeState.DELETING), guard.version), *_mark_locks(scope, locks)]


def close_scope(scope: str, guard: Record, locks: Sequence[Record | None], request_id: str) -> list[Write]:
    """The writes that close a scope: this request deletes the scope with everything in it."""
    return [Replace(guard.key, closing_guard_body(request_id), guard.version), *_mark_locks(scope, locks)]


def delete_scope(scope: str, guard_version: int) -> tuple[Replace, Delete]:
    """The writes that delete a scope whose guard has this version."""
    return (
        Replace(scope_guard_key(scope), guard_body(ScopeState.GONE), guard_version),
        Delete(scope_entry_key(scope), None),
    )


def keep_scope(scope: str, name: str, guard: Record, lock: Record | None) -> list[Write]:
    """The writes that a creation of something of that name adds to its transaction: they remove a deleter's mark.

    The guard is written only if the lock is marked. One that no deleter has marked has no record.

    Raises:
        IllegalStateError: code "scope_deleting": the scope is being deleted with everything in it.
    """
    check_not_closing(guard)
    if lock is not None and decode_guard(lock.body) is not ScopeState.OPEN:
        is_open = guard_body(ScopeState.OPEN)
        return [Replace(lock.key, is_open, lock.version), Replace(guard.key, is_open, guard.version)]
    return [Check(creation_lock_key(scope, name), lock.version if lock else None)]


def check_not_closing(guard: Record) -> None:
    """Raises IllegalStateError, code "scope_deleting", if the scope is being deleted with everything in it."""
    if is_closing(guard):
        raise IllegalStateError(
            "the scope is being deleted with everything in it: wait until it is gone, then create it again",
            code="scope_deleting",
        )


def no_such_scope(scope: str) -> NotFoundError:
    return NotFoundError(f"there is no scope {scope}", details={"scope": scope})


def _mark_locks(scope: str, locks: Sequence[Record | None]) -> list[Write]:
    body = guard_body(ScopeState.DELETING)
    return [
        Create(key, body) if lock is None else Replace(key, body, lock.version)
        for key, lock in zip(creation_lock_keys(scope), locks, strict=True)
    ]

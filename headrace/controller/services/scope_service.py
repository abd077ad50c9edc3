"""Scopes: create, get, list, delete.

Deleting a scope may run concurrently with creating a resource in it. The deletion first marks the scope and all of its
locks, then checks that it is empty, and then removes it if the scope is still marked. The protocol of the locks
(`metadata/scope.py`) lets creations of different names write different records.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.listings import Listing
from headrace.controller.services.paging import check_page_limit, first_after
from headrace.metadata.format_gate import check_new_name
from headrace.metadata.scope import (
    SCOPES_PARTITION,
    check_not_closing,
    create_scope,
    creation_lock_keys,
    delete_scope,
    is_closing,
    is_marked,
    listing_partition,
    mark_scope,
    no_such_scope,
    reader_groups_partition,
    scope_exists,
    scope_guard_key,
    tables_partition,
)
from headrace.model.errors import AlreadyExistsError, ConflictError, IllegalStateError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.names import check_scope_name
from headrace.ports.metadata_store import MetadataStore, WriteConflictError

_ATTEMPTS_MAX = 5


class ScopeService:
    """Called by the scope routes of the API; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def create_scope(self, scope: str) -> None:
        """Create a scope; raises AlreadyExistsError, or InvalidRequestError (code "invalid_name")."""
        check_scope_name(scope)
        check_new_name(self._store, scope)
        self._repeat_on_conflict(scope, self._try_to_create)

    def get_scope(self, scope: str) -> str:
        """The scope's name; raises NotFoundError if there is no such scope."""
        if not scope_exists(self._store.get(scope_guard_key(scope))):
            raise no_such_scope(scope)
        return scope

    def is_deleting(self, scope: str) -> bool:
        """Whether the scope is being deleted with everything in it; raises NotFoundError if there is no such scope."""
        guard = self._store.get(scope_guard_key(scope))
        if guard is None or not scope_exists(guard):
            raise no_such_scope(scope)
        return is_closing(guard)

    def list_scopes(self, limit: int, after: str | None = None) -> Listing[str]:
        """Names in order, those after `after`; raises InvalidRequestError for a limit outside 1..PAGE_ITEMS_MAX."""
        page = self._store.query(
            SCOPES_PARTITION, first=first_after(after), limit=check_page_limit(limit), bytes_max=PAGE_BYTES_MAX
        )
        return Listing(tuple(record.key.sort for record in page.records), page.next_after)

    def delete_scope(self, scope: str) -> None:
        """Remove an empty scope.

        Raises:
            NotFoundError: there is no such scope.
            IllegalStateError: code "scope_not_empty"; or code "scope_deleting": a recursive deletion is running.
            ConflictError: other requests changed the scope during each of the attempts; repeat.
        """
        self._repeat_on_conflict(scope, self._try_to_delete)

    def _try_to_create(self, scope: str) -> None:
        guard = self._store.get(scope_guard_key(scope))
        if scope_exists(guard):
            raise AlreadyExistsError(f"scope {scope} exists", details={"scope": scope})
        self._store.write(*create_scope(scope, guard))

    def _try_to_delete(self, scope: str) -> None:
        guard, *locks = self._store.get_many([scope_guard_key(scope), *creation_lock_keys(scope)])
        if guard is None or not scope_exists(guard):
            raise no_such_scope(scope)
        check_not_closing(guard)
        # Reject a scope in use before it is marked, because each mark costs writes here and in the next creations.
        self._check_empty(scope)
        version = guard.version
        if not is_marked(guard, locks):
            self._store.write(*mark_scope(scope, guard, locks))
            version += 1
            self._check_empty(scope)
        self._store.write(*delete_scope(scope, version))

    def _check_empty(self, scope: str) -> None:
        for things, partition in (
            ("streams", listing_partition(scope)),
            ("reader groups", reader_groups_partition(scope)),
            ("key-value tables", tables_partition(scope)),
        ):
            if self._store.query(partition, limit=1).records:
                raise IllegalStateError(
                    f"scope {scope} is not empty: delete its {things} first",
                    details={"scope": scope},
                    code="scope_not_empty",
                )

    def _repeat_on_conflict(self, scope: str, attempt: Callable[[str], None]) -> None:
        for _ in range(_ATTEMPTS_MAX):
            try:
                return attempt(scope)
            except WriteConflictError:
                continue
        raise ConflictError(f"scope {scope} is busy: others are changing it", details={"scope": scope})


# Recursive deletion of a scope: accepted here, executed by a workflow in bounded pieces.

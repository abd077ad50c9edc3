"""Scopes: create, get, list, delete.

Deleting a scope races with creating a stream in it. The deleter first marks the scope, then looks whether it is empty,
then removes it if the mark still stands; whoever creates a stream takes the mark away in the same transaction. So
either the deleter sees the stream or its removal fails.
"""

from __future__ import annotations

from headrace.codec.records.scope_record import SCOPES_PARTITION, scope_body
from headrace.controller.paging import Listing, check_page_limit, first_after
from headrace.metadata import keys
from headrace.model.errors import AlreadyExistsError, ConflictError, IllegalStateError, NotFoundError
from headrace.model.names import check_scope_name
from headrace.ports.metadata_store import Create, Delete, MetadataStore, Replace, WriteConflictError

_DELETE_ATTEMPTS_MAX = 5


class ScopeService:
    """What the API's scope routes call; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def create_scope(self, scope: str) -> None:
        """Raises AlreadyExistsError; InvalidRequestError (code "invalid_name")."""
        key = keys.scope_key(check_scope_name(scope))
        try:
            self._store.write(Create(key, scope_body(is_deleting=False)))
        except WriteConflictError as error:
            raise AlreadyExistsError(f"scope {scope} exists", details={"scope": scope}) from error

    def get_scope(self, scope: str) -> str:
        """The scope's name; raises NotFoundError if there is no such scope."""
        if self._store.get(keys.scope_key(scope)) is None:
            raise no_such_scope(scope)
        return scope

    def list_scopes(self, limit: int, after: str | None = None) -> Listing[str]:
        """Names in order, those after `after`; raises InvalidRequestError for a limit outside 1..PAGE_ITEMS_MAX."""
        page = self._store.query(SCOPES_PARTITION, first=first_after(after), limit=check_page_limit(limit))
        return Listing(tuple(record.key.sort for record in page.records), page.next_after)

    def delete_scope(self, scope: str) -> None:
        """Remove an empty scope.

        Raises:
            NotFoundError: there is no such scope.
            IllegalStateError: code "scope_not_empty".
            ConflictError: streams come and go too quickly to tell; repeat.
        """
        for _ in range(_DELETE_ATTEMPTS_MAX):
            try:
                return self._try_to_delete(scope)
            except WriteConflictError:
                continue
        raise ConflictError(f"scope {scope} is busy: streams are being created in it", details={"scope": scope})

    def _try_to_delete(self, scope: str) -> None:
        key = keys.scope_key(scope)
        record = self._store.get(key)
        if record is None:
            raise no_such_scope(scope)
        # Cheap refusal first, so that a scope in use is not marked again and again.
        self._check_empty(scope)
        self._store.write(Replace(key, scope_body(is_deleting=True), record.version))
        self._check_empty(scope)
        self._store.write(Delete(key, record.version + 1))

    def _check_empty(self, scope: str) -> None:
        if self._store.query(keys.listing_partition(scope), limit=1).records:
            raise IllegalStateError(
                f"scope {scope} is not empty: delete its streams first",
                details={"scope": scope},
                code="scope_not_empty",
            )


def no_such_scope(scope: str) -> NotFoundError:
    return NotFoundError(f"there is no scope {scope}", details={"scope": scope})

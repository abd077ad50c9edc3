"""Deleting a scope with everything in it: accepted here, done by a workflow in bounded pieces."""

from __future__ import annotations

from headrace.codec.records.intent_record import Intent
from headrace.codec.records.scope_record import ScopeState, closing_guard_body, guard_of_body
from headrace.controller.services.acceptance import send_or_leave
from headrace.controller.services.scopes import mark_doors, no_such_scope, scope_exists
from headrace.metadata import keys
from headrace.metadata.intents import create_intent_write
from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.model.requests import PendingRequest, RequestKind
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Replace
from headrace.ports.request_queue import RequestQueue


class ScopeDeletionService:
    """What the API's route for deleting scopes calls; safe for any number of threads."""

    def __init__(self, store: MetadataStore, queue: RequestQueue, clock: Clock) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock

    def delete_scope_recursively(self, scope: str) -> None:
        """Accept that the scope goes with its reader groups, streams and tables; from now on nothing is created in it.

        Repeated while that is going on, it changes nothing.

        Raises:
            NotFoundError: there is no such scope.
        """
        repeat_on_conflict(lambda: self._try_to_close(scope))

    def _try_to_close(self, scope: str) -> None:
        guard, *doors = self._store.get_many([keys.scope_guard_key(scope), *keys.scope_door_keys(scope)])
        if guard is None or not scope_exists(guard):
            raise no_such_scope(scope)
        if guard_of_body(guard.body) is ScopeState.CLOSING:
            return
        # The guard outlives the scope and its version only grows: no two requests on a name have the same id.
        request = PendingRequest(RequestKind.DELETE_SCOPE, f"delete_scope-{guard.version + 1}")
        intent = Intent(scope, "", request, self._clock.now_ms())
        self._store.write(
            Replace(guard.key, closing_guard_body(request.request_id), guard.version),
            create_intent_write(intent),
            *mark_doors(scope, doors),
        )
        send_or_leave(self._queue, intent)

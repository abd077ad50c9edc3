"""Recursive deletion of a scope: accepted here, executed by a workflow in bounded pieces."""

from __future__ import annotations

from headrace.controller.acceptance import Acceptance
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue


class ScopeDeletionService:
    """Called by the API's route for deleting scopes; safe for any number of threads."""

    def __init__(self, store: MetadataStore, queue: RequestQueue, clock: Clock) -> None:
        self._acceptance = Acceptance(store, queue, clock)

    def delete_scope_recursively(self, scope: str) -> None:
        """Accept the deletion of a scope with its reader groups, streams and tables.

        From then on nothing can be created in the scope. A repeat during the deletion changes nothing.

        Raises:
            NotFoundError: there is no such scope.
        """
        from headrace.controller.operations import delete_scope

        delete_scope.accept(self._acceptance, scope)

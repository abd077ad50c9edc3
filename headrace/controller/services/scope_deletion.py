"""Deleting a scope with everything in it: accepted here, done by a workflow in bounded pieces."""

from __future__ import annotations

from headrace.controller import operations
from headrace.controller.acceptance import Acceptance
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue


class ScopeDeletionService:
    """What the API's route for deleting scopes calls; safe for any number of threads."""

    def __init__(self, store: MetadataStore, queue: RequestQueue, clock: Clock) -> None:
        self._acceptance = Acceptance(store, queue, clock)

    def delete_scope_recursively(self, scope: str) -> None:
        """Accept that the scope goes with its reader groups, streams and tables; from now on nothing is created in it.

        Repeated while that is going on, it changes nothing.

        Raises:
            NotFoundError: there is no such scope.
        """
        operations.delete_scope.accept(self._acceptance, scope)

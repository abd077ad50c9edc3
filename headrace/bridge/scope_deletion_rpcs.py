"""The rpc that deletes a scope with all of its resources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.waiting import Waits
from headrace.controller.services.scopes import ScopeDeletionService, ScopeService
from headrace.model.errors import ConflictError, NotFoundError

Rpc = Callable[[Any], Any | Awaitable[Any]]


class ScopeDeletionRpcs:
    """The rpc returns when the scope is deleted, as Pravega's clients expect."""

    def __init__(self, scopes: ScopeService, deletions: ScopeDeletionService, waits: Waits) -> None:
        self._scopes = scopes
        self._deletions = deletions
        self._waits = waits

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {"deleteScopeRecursive": self.delete_scope_recursively}

    async def delete_scope_recursively(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        scope = messages.known_scope(request.scope)
        what = f"deleting scope {scope}"
        await self._waits.accepted(what, lambda: self._deletions.delete_scope_recursively(scope))
        await self._waits.accepted(what, lambda: self._check_gone(scope))
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)

    def _check_gone(self, scope: str) -> None:
        """Raises ConflictError while the scope is being deleted. An open scope was created again since the deletion."""
        try:
            if self._scopes.is_deleting(scope):
                raise ConflictError(f"scope {scope} is still being deleted")
        except NotFoundError:
            return

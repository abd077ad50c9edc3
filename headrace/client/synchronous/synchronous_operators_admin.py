"""`ClusterAdmin` and `DeadLettersAdmin` for programs without an event loop; thread-safe.

Generated from `administration.operators_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.cluster import (
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    CopiesChanged,
    EpochsRaised,
)
from headrace.api.dead_letters import DeadLetterView
from headrace.api.upgrades import UpgradeView
from headrace.client.administration.operators_admin import AsyncClusterAdmin, AsyncDeadLettersAdmin, DeadLetterPage
from headrace.client.loop_thread import LoopCaller
from headrace.model.limits import PAGE_ITEMS_MAX


class ClusterAdmin:
    """Segment stores, containers and their logs."""

    def __init__(self, thread: LoopCaller, core: AsyncClusterAdmin) -> None:
        self._thread = thread
        self._core = core

    def get(self) -> ClusterView:
        """Returns the stores with their leases and the containers that the map assigns to them."""
        return self._thread.run(self._core.get())

    def containers(self) -> ContainerMapView:
        """Returns for each container its assigned store and the store that has claimed it."""
        return self._thread.run(self._core.containers())

    def logs(self) -> ContainerLogsView:
        """Returns the log of each container with its members."""
        return self._thread.run(self._core.logs())

    def accept_loss(self, container: int, lost: Sequence[str], version: int) -> ContainerLogView:
        """Takes lost members out of a container's log, and returns the log.

        `lost` are replica ids and `version` is that of the log, as `logs` returns them. Acknowledged events that only
        the lost members had are lost. Raises IllegalStateError if the store of a member may still run, or if the
        container can be recovered without a loss; ConflictError if the log has changed.
        """
        return self._thread.run(self._core.accept_loss(container, lost, version))

    def set_copies(self, copies: int) -> CopiesChanged:
        """Sets the number of copies of logs that are not open.

        Raises IllegalStateError if open logs would have to be reduced: stop the segment stores cleanly before.
        """
        return self._thread.run(self._core.set_copies(copies))

    def raise_epochs(self, above: int) -> EpochsRaised:
        """Raises the epochs of containers, for a metadata table that was restored from a backup.

        Repeat it until no container remains.
        """
        return self._thread.run(self._core.raise_epochs(above))

    def upgrade(self) -> UpgradeView:
        """Returns which releases run, and for which one the deployment is finalized."""
        return self._thread.run(self._core.upgrade())

    def finalize_upgrade(self) -> UpgradeView:
        """Allows all formats of the controller's release. Former releases refuse to start from then on.

        Raises IllegalStateError, code "older_stores_run", while a segment store of a former release runs.
        """
        return self._thread.run(self._core.finalize_upgrade())


class DeadLettersAdmin:
    """Lists, inspects, replays and drops dead letters."""

    def __init__(self, thread: LoopCaller, core: AsyncDeadLettersAdmin) -> None:
        self._thread = thread
        self._core = core

    def page(self, *, limit: int = PAGE_ITEMS_MAX, after: str | None = None) -> DeadLetterPage:
        """Lists at most `limit` letters after the letter `after`, oldest first. The total number is not limited."""
        return self._thread.run(self._core.page(limit=limit, after=after))

    def get(self, letter: str) -> DeadLetterView:
        """Returns a letter. Raises NotFoundError if there is no such letter."""
        return self._thread.run(self._core.get(letter))

    def replay(self, letter: str) -> DeadLetterView:
        """Sends the letter's request again; a repeat is harmless.

        Raises:
            NotFoundError: there is no such letter, or the resource of its request was deleted.
            IllegalStateError: code "not_replayable"; or the current state of the stream forbids the request.
        """
        return self._thread.run(self._core.replay(letter))

    def drop(self, letter: str) -> None:
        """Deletes a letter. Raises NotFoundError if there is no such letter."""
        self._thread.run(self._core.drop(letter))

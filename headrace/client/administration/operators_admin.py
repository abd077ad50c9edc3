"""Administration by operators: the cluster (`admin.cluster`) and dead letters (`admin.dead_letters`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.cluster import (
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    CopiesChanged,
    EpochsRaised,
)
from headrace.api.dead_letters import DeadLetterView
from headrace.api.listings import Listing
from headrace.api.upgrades import UpgradeView
from headrace.client.http_api import HttpApi, parsed
from headrace.model.arguments import checked_calls
from headrace.model.dead_letters import check_letter_id
from headrace.model.limits import PAGE_ITEMS_MAX

# Segment stores and the container map, for operators: `admin.cluster`.


@checked_calls()
class AsyncClusterAdmin:
    """Segment stores, containers and their logs."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def get(self) -> ClusterView:
        """Returns the stores with their leases and the containers that the map assigns to them."""
        return parsed(ClusterView.from_json, await self._api.request("GET", "/v1/cluster"))

    async def containers(self) -> ContainerMapView:
        """Returns for each container its assigned store and the store that has claimed it."""
        return parsed(ContainerMapView.from_json, await self._api.request("GET", "/v1/cluster/containers"))

    async def logs(self) -> ContainerLogsView:
        """Returns the log of each container with its members."""
        return parsed(ContainerLogsView.from_json, await self._api.request("GET", "/v1/cluster/logs"))

    async def accept_loss(self, container: int, lost: Sequence[str], version: int) -> ContainerLogView:
        """Takes lost members out of a container's log, and returns the log.

        `lost` are replica ids and `version` is that of the log, as `logs` returns them. Acknowledged events that only
        the lost members had are lost. Raises IllegalStateError if the store of a member may still run, or if the
        container can be recovered without a loss; ConflictError if the log has changed.
        """
        path = f"/v1/cluster/logs/{container}/accept-loss"
        answer = await self._api.request("POST", path, body={"lost": list(lost), "version": version})
        return parsed(ContainerLogView.from_json, answer)

    async def set_copies(self, copies: int) -> CopiesChanged:
        """Sets the number of copies of logs that are not open.

        Raises IllegalStateError if open logs would have to be reduced: stop the segment stores cleanly before.
        """
        return parsed(
            CopiesChanged.from_json, await self._api.request("PUT", "/v1/cluster/copies", body={"copies": copies})
        )

    async def raise_epochs(self, above: int) -> EpochsRaised:
        """Raises the epochs of containers, for a metadata table that was restored from a backup.

        Repeat it until no container remains.
        """
        return parsed(
            EpochsRaised.from_json, await self._api.request("POST", "/v1/cluster/raise-epochs", body={"above": above})
        )

    async def upgrade(self) -> UpgradeView:
        """Returns which releases run, and for which one the deployment is finalized."""
        return parsed(UpgradeView.from_json, await self._api.request("GET", "/v1/cluster/upgrade"))

    async def finalize_upgrade(self) -> UpgradeView:
        """Allows all formats of the controller's release. Former releases refuse to start from then on.

        Raises IllegalStateError, code "older_stores_run", while a segment store of a former release runs.
        """
        return parsed(UpgradeView.from_json, await self._api.request("POST", "/v1/cluster/upgrade"))


# Dead letters, for operators: requests whose last attempt failed. `admin.dead_letters`.

_LETTERS = "/v1/dead-letters"


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of letters, oldest first. Pass `next_after` as `after` to get the next page; the last page has None."""

    letters: tuple[DeadLetterView, ...]
    next_after: str | None


@checked_calls()
class AsyncDeadLettersAdmin:
    """Lists, inspects, replays and drops dead letters."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def page(self, *, limit: int = PAGE_ITEMS_MAX, after: str | None = None) -> DeadLetterPage:
        """Lists at most `limit` letters after the letter `after`, oldest first. The total number is not limited."""
        query: dict[str, str | int] = {"limit": limit} | ({"continuationToken": after} if after else {})
        return parsed(_page, await self._api.request("GET", _LETTERS, query=query))

    async def get(self, letter: str) -> DeadLetterView:
        """Returns a letter. Raises NotFoundError if there is no such letter."""
        return parsed(DeadLetterView.from_json, await self._api.request("GET", _path(letter)))

    async def replay(self, letter: str) -> DeadLetterView:
        """Sends the letter's request again; a repeat is harmless.

        Raises:
            NotFoundError: there is no such letter, or the resource of its request was deleted.
            IllegalStateError: code "not_replayable"; or the current state of the stream forbids the request.
        """
        return parsed(DeadLetterView.from_json, await self._api.request("POST", f"{_path(letter)}/replay"))

    async def drop(self, letter: str) -> None:
        """Deletes a letter. Raises NotFoundError if there is no such letter."""
        await self._api.request("DELETE", _path(letter))


def _path(letter: str) -> str:
    return f"{_LETTERS}/{check_letter_id(letter)}"


def _page(answer: Mapping[str, Any]) -> DeadLetterPage:
    page = Listing.from_json(answer, "letters", DeadLetterView.from_json)
    return DeadLetterPage(page.items, page.next_after)

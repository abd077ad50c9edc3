"""Segment stores and the container map, for operators: `admin.cluster`."""

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
from headrace.client.http_api import HttpApi, parsed
from headrace.model.arguments import checked_calls


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

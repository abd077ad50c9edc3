"""Segment stores and the container map, for operators: `admin.cluster`."""

from __future__ import annotations

from headrace.api.cluster import ClusterView, ContainerMapView
from headrace.client.http_api import HttpApi, parsed


class AsyncClusterAdmin:
    """Reads the state of segment stores and containers."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def get(self) -> ClusterView:
        """Returns the stores with their leases and the containers that the map assigns to them."""
        return parsed(ClusterView.from_json, await self._api.request("GET", "/v1/cluster"))

    async def containers(self) -> ContainerMapView:
        """Returns for each container its assigned store and the store that has claimed it."""
        return parsed(ContainerMapView.from_json, await self._api.request("GET", "/v1/cluster/containers"))

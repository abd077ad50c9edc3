"""Segment stores and the container map for operators. `admin.cluster`."""

from __future__ import annotations

from headrace.api.cluster import ClusterView, ContainerMapView
from headrace.client.http_api import HttpApi, parsed


class AsyncClusterAdmin:
    """Looks at segment stores and containers."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def get(self) -> ClusterView:
        """The stores, their leases and what the map gives them."""
        return parsed(ClusterView.from_json, await self._api.request("GET", "/v1/cluster"))

    async def containers(self) -> ContainerMapView:
        """Where each container is and belongs."""
        return parsed(ContainerMapView.from_json, await self._api.request("GET", "/v1/cluster/containers"))

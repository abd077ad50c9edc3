"""Segment stores and the container map for operators. `admin.cluster`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.http_api import HttpApi
from headrace.client.views import parsed


@dataclass(frozen=True, slots=True)
class StoreView:
    """A segment store process. Times are milliseconds since the Unix epoch.

    `state` is SERVING, LEAVING (told to stop), LEFT (stopped in order) or LOST. `take_over_ms` is until when the
    containers of a store that has ended wait for it.
    """

    store_id: str
    state: str
    host: str
    port: int
    zone: str
    capacity: int
    incarnation: int
    task: str | None
    lease_until_ms: int
    ended_ms: int | None
    take_over_ms: int | None
    containers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All stores by id; `map_version` is None before the first container map."""

    map_version: int | None
    container_count: int
    stores: tuple[StoreView, ...]


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container: the store that the map names, and the one that clients are sent to, with its address and epoch.

    `state` is SERVED, MOVING, FREE (about to be opened) or WAITING (its store is away and expected back).
    """

    container: int
    store: str | None
    state: str
    claimed_by: str | None
    host: str | None
    port: int | None
    zone: str | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class ContainerMapView:
    """Every container, in their order."""

    map_version: int | None
    containers: tuple[ContainerView, ...]


class AsyncClusterAdmin:
    """Looks at segment stores and containers."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def get(self) -> ClusterView:
        """The stores, their leases and what the map gives them."""
        return parsed(_cluster, await self._api.request("GET", "/v1/cluster"))

    async def containers(self) -> ContainerMapView:
        """Where each container is and belongs."""
        return parsed(_container_map, await self._api.request("GET", "/v1/cluster/containers"))


def _cluster(answer: Mapping[str, Any]) -> ClusterView:
    stores = tuple(_store(each) for each in answer["stores"])
    return ClusterView(_number(answer["mapVersion"]), int(answer["containerCount"]), stores)


def _store(answer: Mapping[str, Any]) -> StoreView:
    return StoreView(
        store_id=str(answer["storeId"]),
        state=str(answer["state"]),
        host=str(answer["host"]),
        port=int(answer["port"]),
        zone=str(answer["zone"]),
        capacity=int(answer["capacity"]),
        incarnation=int(answer["incarnation"]),
        task=_text(answer["task"]),
        lease_until_ms=int(answer["leaseUntil"]),
        ended_ms=_number(answer["endedTime"]),
        take_over_ms=_number(answer["takeOverTime"]),
        containers=tuple(map(int, answer["containers"])),
    )


def _container_map(answer: Mapping[str, Any]) -> ContainerMapView:
    containers = tuple(_container(each) for each in answer["containers"])
    return ContainerMapView(_number(answer["mapVersion"]), containers)


def _container(answer: Mapping[str, Any]) -> ContainerView:
    return ContainerView(
        container=int(answer["container"]),
        store=_text(answer["store"]),
        state=str(answer["state"]),
        claimed_by=_text(answer["claimedBy"]),
        host=_text(answer["host"]),
        port=_number(answer["port"]),
        zone=_text(answer["zone"]),
        epoch=_number(answer["epoch"]),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)

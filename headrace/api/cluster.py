"""Segment stores and containers. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.cluster import ContainerStanding, StoreLease, StoreState
from headrace.model.containers import ContainerClaim


@dataclass(frozen=True, slots=True)
class StoreView:
    """A segment store process.

    `state` is SERVING, LEAVING (shutting down), LEFT (after a graceful shutdown) or LOST. After a store has ended, its
    containers wait for it until `take_over_ms`. `containers` are those that the container map assigns to it.
    """

    store_id: str
    state: StoreState
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

    @classmethod
    def of(cls, lease: StoreLease, containers: tuple[int, ...]) -> StoreView:
        return cls(
            store_id=lease.store_id,
            state=lease.state,
            host=lease.host,
            port=lease.port,
            zone=lease.zone,
            capacity=lease.capacity,
            incarnation=lease.incarnation,
            task=lease.task or None,
            lease_until_ms=lease.lease_until_ms,
            ended_ms=lease.ended_ms,
            take_over_ms=lease.take_over_ms,
            containers=containers,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StoreView:
        return cls(
            store_id=str(document["storeId"]),
            state=StoreState(document["state"]),
            host=str(document["host"]),
            port=int(document["port"]),
            zone=str(document["zone"]),
            capacity=int(document["capacity"]),
            incarnation=int(document["incarnation"]),
            task=_text(document["task"]),
            lease_until_ms=int(document["leaseUntil"]),
            ended_ms=_number(document["endedTime"]),
            take_over_ms=_number(document["takeOverTime"]),
            containers=tuple(map(int, document["containers"])),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "storeId": self.store_id,
            "state": self.state.value,
            "host": self.host,
            "port": self.port,
            "zone": self.zone,
            "capacity": self.capacity,
            "incarnation": self.incarnation,
            "task": self.task,
            "leaseUntil": self.lease_until_ms,
            "endedTime": self.ended_ms,
            "takeOverTime": self.take_over_ms,
            "containers": list(self.containers),
        }


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All stores, sorted by id. `map_version` is None before the first container map is written."""

    map_version: int | None
    container_count: int
    stores: tuple[StoreView, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ClusterView:
        stores = tuple(map(StoreView.from_json, document["stores"]))
        return cls(_number(document["mapVersion"]), int(document["containerCount"]), stores)

    def to_json(self) -> dict[str, Any]:
        return {
            "mapVersion": self.map_version,
            "containerCount": self.container_count,
            "stores": [one.to_json() for one in self.stores],
        }


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container and its two stores.

    The container map assigns it to `store`. Clients are sent to `claimed_by`, which listens at `host` and `port`.
    `state` is SERVED, MOVING, FREE (about to be opened) or WAITING (its store is away and expected back).
    """

    container: int
    store: str | None
    state: ContainerStanding
    claimed_by: str | None
    host: str | None
    port: int | None
    zone: str | None
    epoch: int | None

    @classmethod
    def of(
        cls,
        container: int,
        store: str | None,
        state: ContainerStanding,
        claim: ContainerClaim | None,
        epoch: int | None,
    ) -> ContainerView:
        return cls(
            container=container,
            store=store,
            state=state,
            claimed_by=claim.store_id if claim else None,
            host=claim.host if claim else None,
            port=claim.port if claim else None,
            zone=claim.zone if claim else None,
            epoch=epoch,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ContainerView:
        return cls(
            container=int(document["container"]),
            store=_text(document["store"]),
            state=ContainerStanding(document["state"]),
            claimed_by=_text(document["claimedBy"]),
            host=_text(document["host"]),
            port=_number(document["port"]),
            zone=_text(document["zone"]),
            epoch=_number(document["epoch"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "container": self.container,
            "store": self.store,
            "state": self.state.value,
            "claimedBy": self.claimed_by,
            "host": self.host,
            "port": self.port,
            "zone": self.zone,
            "epoch": self.epoch,
        }


@dataclass(frozen=True, slots=True)
class ContainerMapView:
    """All containers, sorted by number."""

    map_version: int | None
    containers: tuple[ContainerView, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ContainerMapView:
        containers = tuple(map(ContainerView.from_json, document["containers"]))
        return cls(_number(document["mapVersion"]), containers)

    def to_json(self) -> dict[str, Any]:
        return {"mapVersion": self.map_version, "containers": [one.to_json() for one in self.containers]}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)

"""JSON of the cluster routes."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.controller import cluster
from headrace.model.cluster import ContainerStanding, StoreState


class Store(WireModel):
    storeId: str
    state: StoreState
    host: str
    port: int
    zone: str
    capacity: int = Field(description="Weight against other stores")
    incarnation: int = Field(description="Grows with each start")
    task: str | None = Field(description="ARN of its ECS task")
    leaseUntil: int = Field(description="Milliseconds since 1970")
    endedTime: int | None = Field(description="Since when it is LEFT or LOST, milliseconds since 1970")
    takeOverTime: int | None = Field(description="Until when its containers wait for it, milliseconds since 1970")
    containers: list[int] = Field(description="What the container map gives it")


class Cluster(WireModel):
    mapVersion: int | None = Field(description="Null before the first container map")
    containerCount: int
    stores: list[Store]


class Container(WireModel):
    container: int
    store: str | None = Field(description="The store that the container map names")
    state: ContainerStanding
    claimedBy: str | None = Field(description="The store that clients are sent to")
    host: str | None
    port: int | None
    zone: str | None
    epoch: int | None = Field(description="Grows with each claim; every endpoint answer carries it")


class ContainerMap(WireModel):
    mapVersion: int | None
    containers: list[Container]


def cluster_answer(found: cluster.Cluster) -> Cluster:
    stores = [_store(each) for each in found.stores]
    return Cluster(mapVersion=found.map_version, containerCount=found.container_count, stores=stores)


def container_map_answer(found: cluster.ContainersInCluster) -> ContainerMap:
    return ContainerMap(mapVersion=found.map_version, containers=[_container(each) for each in found.containers])


def _store(each: cluster.StoreInCluster) -> Store:
    lease = each.lease
    return Store(
        storeId=lease.store_id,
        state=lease.state,
        host=lease.host,
        port=lease.port,
        zone=lease.zone,
        capacity=lease.capacity,
        incarnation=lease.incarnation,
        task=lease.task or None,
        leaseUntil=lease.lease_until_ms,
        endedTime=lease.ended_ms,
        takeOverTime=lease.take_over_ms,
        containers=list(each.containers),
    )


def _container(each: cluster.ContainerInCluster) -> Container:
    claim = each.claim
    return Container(
        container=each.container,
        store=each.store_id,
        state=each.standing,
        claimedBy=claim.store_id if claim else None,
        host=claim.host if claim else None,
        port=claim.port if claim else None,
        zone=claim.zone if claim else None,
        epoch=each.epoch,
    )

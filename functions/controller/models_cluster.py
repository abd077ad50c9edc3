"""JSON of the cluster routes."""

from __future__ import annotations

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.model.cluster import ContainerStanding, StoreState


class Store(WireModel):
    storeId: str
    state: StoreState = Field(strict=False)
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
    state: ContainerStanding = Field(strict=False)
    claimedBy: str | None = Field(description="The store that clients are sent to")
    host: str | None
    port: int | None
    zone: str | None
    epoch: int | None = Field(description="Grows with each claim; every endpoint answer carries it")


class ContainerMap(WireModel):
    mapVersion: int | None
    containers: list[Container]

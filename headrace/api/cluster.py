"""Segment stores and containers. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.model.cluster import ContainerStanding, StoreLease, StoreState
from headrace.model.containers import ContainerClaim
from headrace.model.documents import Document, about


class StoreView(Document, frozen=True):
    """A segment store process.

    `state` is SERVING, LEAVING (shutting down), LEFT (after a graceful shutdown) or LOST. After a store has ended, its
    containers wait for it until `take_over_ms`. `containers` are those that the container map assigns to it.
    """

    store_id: str
    state: StoreState
    host: str
    port: int
    zone: str
    capacity: Annotated[int, about("Weight against other stores")]
    incarnation: Annotated[int, about("Grows with each start")]
    task: Annotated[str | None, about("ARN of its ECS task")]
    lease_until_ms: Annotated[int, about("Milliseconds since 1970")]
    ended_ms: Annotated[int | None, about("Since when it is LEFT or LOST, milliseconds since 1970")] = field(
        name="endedTime"
    )
    take_over_ms: Annotated[int | None, about("Until when its containers wait for it, milliseconds since 1970")] = (
        field(name="takeOverTime")
    )
    containers: Annotated[tuple[int, ...], about("What the container map gives it")]

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


class ClusterView(Document, frozen=True):
    """All stores, sorted by id. `map_version` is None before the first container map is written."""

    map_version: Annotated[int | None, about("Null before the first container map")]
    container_count: int
    stores: tuple[StoreView, ...]


class ContainerView(Document, frozen=True):
    """A container and its two stores.

    The container map assigns it to `store`. Clients are sent to `claimed_by`, which listens at `host` and `port`.
    `state` is SERVED, MOVING, FREE (about to be opened) or WAITING (its store is away and expected back).
    """

    container: int
    store: Annotated[str | None, about("The store that the container map names")]
    state: ContainerStanding
    claimed_by: Annotated[str | None, about("The store that clients are sent to")]
    host: str | None
    port: int | None
    zone: str | None
    epoch: Annotated[int | None, about("Grows with each claim; every endpoint answer carries it")]

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


class ContainerMapView(Document, frozen=True):
    """All containers, sorted by number."""

    map_version: int | None
    containers: tuple[ContainerView, ...]

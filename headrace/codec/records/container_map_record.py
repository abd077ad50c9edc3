"""The container map: one record, whose version is the version of the map."""

from __future__ import annotations

from typing import Any, Final

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.cluster import ContainerMap

CONTAINER_MAP_SORT: Final = "map"


def container_map_body(container_map: ContainerMap) -> dict[str, Any]:
    """Containers by store, in their order; discarded logs as [container, epoch]."""
    owners = sorted(set(container_map.stores.values()))
    return versioned(
        stores={owner: list(container_map.containers_of(owner)) for owner in owners},
        given_up=[[container, epoch] for container, epoch in sorted(container_map.discarded_logs.items())],
    )


def container_map_of_body(body: Body) -> ContainerMap:
    return decoded("container map", body, _map)


def _map(body: Body) -> ContainerMap:
    stores = {int(container): str(owner) for owner, held in body["stores"].items() for container in held}
    discarded = {int(container): int(epoch) for container, epoch in body["given_up"]}
    return ContainerMap(dict(sorted(stores.items())), discarded)

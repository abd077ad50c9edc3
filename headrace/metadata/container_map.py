"""The container map: one record, whose version is the version of the map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.metadata.record_layout import decoded, versioned
from headrace.model.cluster import ContainerMap
from headrace.model.containers import CLUSTER_PARTITION
from headrace.ports.metadata_store import Body, Create, Key, Record, Replace, Write

CONTAINER_MAP_SORT: Final = "map"
MAP_KEY = Key(CLUSTER_PARTITION, CONTAINER_MAP_SORT)


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The container map as it was read; `version` is None while there is no record of it."""

    map: ContainerMap
    version: int | None


def container_map_body(container_map: ContainerMap) -> dict[str, Any]:
    """Containers by store, in their order; discarded logs as [container, epoch]."""
    owners = sorted(set(container_map.stores.values()))
    return versioned(
        stores={owner: list(container_map.containers_of(owner)) for owner in owners},
        given_up=[[container, epoch] for container, epoch in sorted(container_map.discarded_logs.items())],
    )


def decode_container_map(body: Body) -> ContainerMap:
    return decoded("container map", body, _map)


def stored_map(record: Record | None) -> StoredMap:
    """The map in its record; an empty one without."""
    if record is None:
        return StoredMap(ContainerMap(), None)
    return StoredMap(decode_container_map(record.body), record.version)


def write_map(container_map: ContainerMap, version: int | None) -> Write:
    """The write that replaces the map of this version, or creates the first map if `version` is None."""
    body = container_map_body(container_map)
    return Create(MAP_KEY, body) if version is None else Replace(MAP_KEY, body, version)


def _map(body: Body) -> ContainerMap:
    stores = {int(container): str(owner) for owner, held in body["stores"].items() for container in held}
    discarded = {int(container): int(epoch) for container, epoch in body["given_up"]}
    return ContainerMap(dict(sorted(stores.items())), discarded)

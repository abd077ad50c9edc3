"""The names of objects in tier 2, which tell the container and the epoch of the owner that wrote them.

Names are never used twice: a container's epoch grows with each owner, and an owner numbers what it writes.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.codec.log_objects import container_log_prefix, parse_log_object_name
from headrace.model.chunks import packed_epoch, packed_prefix

EPOCH_DIGITS: Final = 10

_OWNED_NAME: Final = re.compile(rf"(?:[^/]+/)?(\d{{{EPOCH_DIGITS}}})-\d{{{EPOCH_DIGITS}}}", re.ASCII)


def snapshot_prefix(container: int) -> str:
    """The prefix of the names of a container's snapshots."""
    return f"snapshots/container-{container:04d}/"


def snapshot_name(container: int, epoch: int, number: int) -> str:
    """The name of the snapshot `number` that the container's owner of `epoch` writes."""
    return f"{snapshot_prefix(container)}{epoch:0{EPOCH_DIGITS}d}-{number:0{EPOCH_DIGITS}d}"


def table_indexes_prefix(container: int) -> str:
    """The prefix of the names of the index objects of a container's tables."""
    return f"tables/container-{container:04d}/"


def object_prefixes(container: int) -> tuple[str, ...]:
    """The prefixes of all names that owners of a container give, each of another kind of objects."""
    return (
        packed_prefix(container),
        snapshot_prefix(container),
        table_indexes_prefix(container),
        container_log_prefix(container),
    )


def object_epoch(container: int, name: str) -> int | None:
    """The epoch in the name of an object of this container; None for a name that no owner gives."""
    packed = packed_epoch(container, name)
    if packed is not None:
        return packed
    logged = parse_log_object_name(name)
    if logged is not None and logged[0] == container:
        return logged[1]
    for prefix in (snapshot_prefix(container), table_indexes_prefix(container)):
        owned = _OWNED_NAME.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if owned is not None:
            return int(owned[1])
    return None

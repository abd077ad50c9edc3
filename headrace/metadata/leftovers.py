"""Ids of segments that rolled-back scales of a stream may have created: they are empty and part of no epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Replace

LEFTOVERS_SORT: Final = "leftovers"


def leftovers_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), LEFTOVERS_SORT)


def leftovers_body(identifiers: Iterable[int]) -> dict[str, Any]:
    return versioned(segments=sorted(identifiers))


def decode_leftovers(body: Body) -> tuple[int, ...]:
    return decoded("leftovers", body, lambda fields: tuple(int(one) for one in fields["segments"]))


@dataclass(frozen=True, slots=True)
class StoredLeftovers:
    """Ids of leftover segments as they were read, and the version of their record."""

    identifiers: tuple[int, ...]
    version: int


def find_leftovers(store: MetadataStore, stream: Stream) -> StoredLeftovers | None:
    """One read."""
    record = store.get(leftovers_key(stream.scope, stream.name))
    return StoredLeftovers(decode_leftovers(record.body), record.version) if record else None


def write_leftovers(stream: Stream, identifiers: Iterable[int], version: int | None) -> Create | Replace:
    """The write that replaces the record of this version, or creates it if `version` is None."""
    key, body = leftovers_key(stream.scope, stream.name), leftovers_body(identifiers)
    return Create(key, body) if version is None else Replace(key, body, version)


def delete_leftovers_record(stream: Stream, version: int) -> Delete:
    return Delete(leftovers_key(stream.scope, stream.name), version)

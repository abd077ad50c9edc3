"""Pages of the indexes of due work: entries that decode and those that do not. Entries move to another time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.metadata.record_layout import moved_to
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Write

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A record of an index that does not decode, and why."""

    record: Record
    error: CorruptError


@dataclass(frozen=True, slots=True)
class IndexPage(Generic[D]):
    """Records of an index in order, with their values; `next_after` is the last sort key, None at the end."""

    entries: Sequence[tuple[Record, D]]
    undecodable: Sequence[Undecodable]
    next_after: str | None


def read_index(
    store: MetadataStore,
    partition: str,
    decode: Callable[[Body], D],
    *,
    after: str,
    last: str | None = None,
    limit: int,
) -> IndexPage[D]:
    """The records with sort keys above `after`, up to `last`; one query. `after` is empty for the beginning."""
    page = store.query(partition, first=f"{after}\0" if after else "", last=last, limit=limit)
    entries: list[tuple[Record, D]] = []
    undecodable: list[Undecodable] = []
    for record in page.records:
        try:
            entries.append((record, decode(record.body)))
        except CorruptError as error:
            undecodable.append(Undecodable(record, error))
    return IndexPage(entries, undecodable, page.next_after)


def move_back(record: Record, due_ms: int, body: Body | None = None) -> list[Write]:
    """The writes that make a record of an index by time due at `due_ms`, with another body or the same."""
    key = Key(record.key.partition, moved_to(record.key.sort, due_ms))
    return [Delete(record.key, record.version), Create(key, record.body if body is None else body)]

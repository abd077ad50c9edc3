"""The part of a commit set in one stream: the members, and from the decision on their place in the commit order.

The ids are one text of 32 hex digits each, so that 2,500 of them are 80 KB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, transactions_partition, versioned
from headrace.model.commit_sets import CommitPart
from headrace.model.transactions import CommitOrder, transaction_text
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace

_PREFIX = "commit-part/"
_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as it was read, and the version of its record."""

    part: CommitPart
    version: int


def commit_part_key(scope: str, stream: str, set_id: str) -> Key:
    return Key(transactions_partition(scope, stream), f"{_PREFIX}{set_id}")


def commit_part_body(part: CommitPart) -> dict[str, Any]:
    return versioned(
        set=part.set_id,
        home=part.home,
        writer=part.writer,
        members="".join(map(transaction_text, part.members)),
        order=None if part.order is None else part.order.number,
        lost=part.lost,
    )


def decode_commit_part(body: Body) -> CommitPart:
    return decoded("commit part", body, _commit_part)


def stored_part(record: Record | None) -> StoredPart | None:
    return None if record is None else StoredPart(decode_commit_part(record.body), record.version)


def find_commit_part(store: MetadataStore, scope: str, stream: str, set_id: str) -> StoredPart | None:
    """One read."""
    return stored_part(store.get(commit_part_key(scope, stream, set_id)))


def find_commit_parts(
    store: MetadataStore, scope: str, streams: Iterable[str], set_id: str
) -> dict[str, StoredPart | None]:
    """The parts of a set by stream; one batch read."""
    names = list(streams)
    records = store.get_many([commit_part_key(scope, one, set_id) for one in names])
    return dict(zip(names, map(stored_part, records), strict=True))


def create_commit_part(scope: str, stream: str, part: CommitPart) -> Create:
    return Create(commit_part_key(scope, stream, part.set_id), commit_part_body(part))


def replace_commit_part(scope: str, stream: str, stored: StoredPart, after: CommitPart) -> Replace:
    return Replace(commit_part_key(scope, stream, after.set_id), commit_part_body(after), stored.version)


def delete_commit_part(scope: str, stream: str, set_id: str, version: int | None) -> Delete:
    return Delete(commit_part_key(scope, stream, set_id), version)


def _commit_part(body: Body) -> CommitPart:
    text, number = str(body["members"]), body["order"]
    members = tuple(int(text[start : start + _ID_DIGITS], 16) for start in range(0, len(text), _ID_DIGITS))
    return CommitPart(
        set_id=str(body["set"]),
        home=str(body["home"]),
        writer=str(body["writer"]),
        members=members,
        order=None if number is None else CommitOrder(int(number), group=members[0]),
        lost=bool(body["lost"]),
    )

"""Entries of a state synchronizer's stream: an initial state, or updates that are applied together. Pravega's form.

A number says which of both (4 bytes), then follow the bytes of the initial state, or each update after its length (4
bytes). The forms of state and update are those of the application.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.codec.serialized_fields import FieldReader, int32
from headrace.model.errors import CorruptError

_INITIAL = 1
_UPDATES = 2


@dataclass(frozen=True, slots=True)
class InitialEntry:
    """A state with which everything begins again."""

    state: bytes | memoryview


@dataclass(frozen=True, slots=True)
class UpdatesEntry:
    """Updates that are applied in this order, all or none."""

    updates: Sequence[bytes | memoryview]


def entry_bytes(entry: InitialEntry | UpdatesEntry) -> bytes:
    """The stored form of an entry."""
    if isinstance(entry, InitialEntry):
        return b"".join((int32(_INITIAL), entry.state))
    return int32(_UPDATES) + b"".join(b"".join((int32(len(one)), one)) for one in entry.updates)


def parse_entry(data: bytes | memoryview) -> InitialEntry | UpdatesEntry:
    """Raises CorruptError: this is not an entry."""
    reader = FieldReader(data)
    kind = reader.int32()
    if kind == _INITIAL:
        return InitialEntry(reader.take(reader.left_bytes))
    if kind != _UPDATES:
        raise CorruptError(f"an entry of a state synchronizer has the kind {kind}: expected {_INITIAL} or {_UPDATES}")
    updates = []
    while reader.left_bytes:
        updates.append(reader.take(reader.int32()))
    return UpdatesEntry(tuple(updates))

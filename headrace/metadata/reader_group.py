"""The current record of a reader group: configuration, generation, state and pending request, in one read.

A deleted group leaves a tombstone. Its version continues to grow, so that a process that read the record of an earlier
incarnation cannot write that of the present one. The entry in the list of the scope's groups is deleted. Only this
module writes the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.intent import Intent, create_intent_write, delete_intent_write
from headrace.metadata.record_layout import decoded, versioned
from headrace.metadata.scope import name_body, reader_group_listing_key
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.names import check_known_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    RetentionMode,
)
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.model.stream_cuts import StreamCut
from headrace.ports.metadata_store import Body, Check, Create, Delete, Key, MetadataStore, Record, Replace, Write

GROUPS_FIRST = "reader-group/"
GROUP_SORT = "current"


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A reader group as it was read, and the version of its record."""

    group: ReaderGroup
    version: int

    def is_pending(self, request: PendingRequest) -> bool:
        return self.group.is_pending(request)

    @property
    def unchanged(self) -> Check:
        """A check that the record is still the one that was read."""
        return Check(reader_group_key(self.group.scope, self.group.name), self.version)


def group_partition(scope: str, group: str) -> str:
    return f"{GROUPS_FIRST}{check_known_name('scope', scope)}/{check_known_name('reader group', group)}"


def reader_group_key(scope: str, group: str) -> Key:
    return Key(group_partition(scope, group), GROUP_SORT)


def is_reader_group(key: Key) -> bool:
    """Whether a key is that of the current record of a reader group."""
    return key.partition.startswith(GROUPS_FIRST) and key.sort == GROUP_SORT


def read_reader_group(record: Record) -> ReaderGroup | None:
    """The reader group in a record; None for a tombstone and for any other record. Raises CorruptError."""
    return decode_group(record.body) if is_reader_group(record.key) else None


def group_body(group: ReaderGroup) -> dict[str, Any]:
    pending = group.pending
    return versioned(
        scope=group.scope,
        name=group.name,
        id=group.group_id,
        generation=group.generation,
        state=str(group.state),
        configuration=_configuration_fields(group.configuration),
        leaving=sorted(group.leaving),
        pending=[str(pending.kind), pending.request_id] if pending else None,
    )


def decode_group(body: Body) -> ReaderGroup | None:
    """The reader group; None for a tombstone."""
    return None if body.get("gone") else decoded("reader group", body, _group)


def group_tombstone_body() -> dict[str, Any]:
    return versioned(gone=True)


class ReaderGroupRecords:
    """Reads and writes the records of reader groups."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def find(self, scope: str, group: str) -> StoredGroup | None:
        """One read; None if there is no such group."""
        return stored_group(self.store.get(reader_group_key(scope, group)))

    def get(self, scope: str, group: str) -> StoredGroup:
        """One read; raises NotFoundError if there is no such group."""
        stored = self.find(scope, group)
        if stored is None:
            raise no_such_group(scope, group)
        return stored

    def create(self, group: ReaderGroup, tombstone: Record | None, intent: Intent, *others: Write) -> None:
        """Write a new group. It replaces the tombstone that a deleted group of this name left, if there is one."""
        key, body = reader_group_key(group.scope, group.name), group_body(group)
        self.store.write(
            Create(key, body) if tombstone is None else Replace(key, body, tombstone.version),
            Create(reader_group_listing_key(group.scope, group.name), name_body()),
            create_intent_write(intent),
            *others,
        )

    def start(self, stored: StoredGroup, after: ReaderGroup, intent: Intent, *others: Write) -> None:
        """Write the group and the intent of an operation that starts.

        Raises:
            WriteConflictError: the group has changed since it was read.
        """
        self.store.write(_replace(stored, after), create_intent_write(intent), *others)

    def finish(self, stored: StoredGroup, after: ReaderGroup) -> None:
        """Write the group whose operation is complete, and delete the intent; raises as `start` does."""
        self.store.write(_replace(stored, after), _delete_intent(after))

    def replace_with_tombstone(self, stored: StoredGroup) -> None:
        """Complete the deletion; raises as `start` does, and CorruptError if the group is not being deleted."""
        group = stored.group
        if group.state is not ReaderGroupState.DELETING:
            raise CorruptError(f"refusing to remove reader group {group.scoped_name}: it is {group.state}")
        self.store.write(
            Replace(reader_group_key(group.scope, group.name), group_tombstone_body(), stored.version),
            Delete(reader_group_listing_key(group.scope, group.name), None),
            _delete_intent(group),
        )


def stored_group(record: Record | None) -> StoredGroup | None:
    """The group in a current record; None if there is no record or a tombstone."""
    group = decode_group(record.body) if record else None
    return StoredGroup(group, record.version) if record and group else None


def no_such_group(scope: str, group: str) -> NotFoundError:
    return NotFoundError(f"there is no reader group {scope}/{group}", details={"scope": scope, "readerGroup": group})


def _replace(stored: StoredGroup, after: ReaderGroup) -> Replace:
    return Replace(reader_group_key(after.scope, after.name), group_body(after), stored.version)


def _delete_intent(group: ReaderGroup) -> Delete:
    return delete_intent_write(ResourceKind.READER_GROUP, group.scope, group.name)


def _group(body: Body) -> ReaderGroup:
    pending = body["pending"]
    return ReaderGroup(
        scope=str(body["scope"]),
        name=str(body["name"]),
        group_id=str(body["id"]),
        generation=int(body["generation"]),
        state=ReaderGroupState(body["state"]),
        configuration=_configuration(body["configuration"]),
        leaving=frozenset(str(name) for name in body["leaving"]),
        pending=PendingRequest(RequestKind(pending[0]), str(pending[1])) if pending is not None else None,
    )


def _configuration_fields(configuration: ReaderGroupConfiguration) -> dict[str, Any]:
    return {
        "streams": [
            [stream.scope, stream.stream, _cut(stream.start), _cut(stream.end)] for stream in configuration.streams
        ],
        "retention": str(configuration.retention),
        "group_refresh_ms": configuration.group_refresh_ms,
        "automatic_checkpoint_interval_ms": configuration.automatic_checkpoint_interval_ms,
        "outstanding_checkpoints_max": configuration.outstanding_checkpoints_max,
        "rollover_size_bytes": configuration.rollover_size_bytes,
    }


def _configuration(fields: Body) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration(
        streams=tuple(_stream(*row) for row in fields["streams"]),
        retention=RetentionMode(fields["retention"]),
        group_refresh_ms=int(fields["group_refresh_ms"]),
        automatic_checkpoint_interval_ms=int(fields["automatic_checkpoint_interval_ms"]),
        outstanding_checkpoints_max=int(fields["outstanding_checkpoints_max"]),
        rollover_size_bytes=int(fields["rollover_size_bytes"]),
    )


def _cut(cut: StreamCut | None) -> list[list[int]] | None:
    return None if cut is None else [list(position) for position in cut.positions]


def _stream(scope: str, stream: str, start: Any, end: Any) -> GroupStream:
    return GroupStream(scope, stream, _decode_cut(scope, stream, start), _decode_cut(scope, stream, end))


def _decode_cut(scope: str, stream: str, rows: Any) -> StreamCut | None:
    if rows is None:
        return None
    return StreamCut(scope, stream, tuple((int(identifier), int(offset)) for identifier, offset in rows))

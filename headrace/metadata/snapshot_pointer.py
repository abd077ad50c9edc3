"""The pointer to the newest snapshot of a container in tier 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.model.containers import CLUSTER_PARTITION, SnapshotPointer
from headrace.model.record_fields import record_field
from headrace.ports.metadata_store import Create, Key, Record, Replace


def snapshot_sort(container: int) -> str:
    """The sort key of a container's snapshot pointer in CLUSTER_PARTITION."""
    return f"snapshot/{container:04d}"


def snapshot_key(container: int) -> Key:
    return Key(CLUSTER_PARTITION, snapshot_sort(container))


def snapshot_body(pointer: SnapshotPointer) -> dict[str, Any]:
    return {
        "object": pointer.object_name,
        "length": pointer.length,
        "crc32c": pointer.checksum,
        "epoch": pointer.epoch,
        "clean": pointer.clean,
    }


def decode_snapshot_pointer(body: Mapping[str, Any]) -> SnapshotPointer:
    """The pointer stored in a record body; raises CorruptError if the body is not a pointer."""
    length, checksum, epoch = (record_field(body, name, int) for name in ("length", "crc32c", "epoch"))
    return SnapshotPointer(
        record_field(body, "object", str), length, checksum, epoch, record_field(body, "clean", bool)
    )


def write_snapshot_pointer(container: int, pointer: SnapshotPointer, version: int | None) -> Create | Replace:
    """The write that replaces the pointer of this version, or creates the first pointer if `version` is None."""
    key, body = snapshot_key(container), snapshot_body(pointer)
    return Create(key, body) if version is None else Replace(key, body, version)


def read_snapshot_pointer(record: Record) -> SnapshotPointer:
    """The pointer in a record; raises CorruptError if it is not one."""
    return decode_snapshot_pointer(record.body)

"""The running truncation of a stream, and how far it has come."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.metadata.truncation import (
    decode_placed_cut,
    decode_truncation_fields,
    placed_cut_fields,
    truncation_fields,
)
from headrace.model.streams import Stream
from headrace.model.truncation import RunningTruncation
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace

RUNNING_TRUNCATION_SORT = "truncating"


def running_truncation_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), RUNNING_TRUNCATION_SORT)


def running_truncation_body(running: RunningTruncation) -> dict[str, Any]:
    return versioned(
        target=placed_cut_fields(running.target),
        first_epoch=running.first_epoch,
        before=truncation_fields(running.before) if running.before else None,
        next_epoch=running.next_epoch,
        size_bytes=running.size_bytes,
        recorded=running.is_recorded,
        **({"positions_done": running.positions_done} if running.positions_done else {}),
        **({"by_retention": True} if running.by_retention else {}),
    )


def decode_running_truncation(body: Body) -> RunningTruncation:
    return decoded("running truncation", body, _running)


def read_running_truncation(record: Record | None) -> RunningTruncation | None:
    """The running truncation in a record; None if there is no record."""
    return decode_running_truncation(record.body) if record else None


def find_running_truncation(store: MetadataStore, stream: Stream) -> tuple[RunningTruncation, int] | None:
    """The running truncation and the version of its record; one read."""
    record = store.get(running_truncation_key(stream.scope, stream.name))
    return (decode_running_truncation(record.body), record.version) if record else None


def create_running_truncation(stream: Stream, running: RunningTruncation) -> Create:
    return Create(running_truncation_key(stream.scope, stream.name), running_truncation_body(running))


def replace_running_truncation(stream: Stream, running: RunningTruncation, version: int) -> Replace:
    return Replace(running_truncation_key(stream.scope, stream.name), running_truncation_body(running), version)


def delete_running_truncation(stream: Stream, version: int | None) -> Delete:
    """With `version` only if the record is still the one that was read."""
    return Delete(running_truncation_key(stream.scope, stream.name), version)


def _running(body: Body) -> RunningTruncation:
    return RunningTruncation(
        target=decode_placed_cut(body["target"]),
        first_epoch=int(body["first_epoch"]),
        before=decode_truncation_fields(body["before"]) if body["before"] is not None else None,
        next_epoch=int(body["next_epoch"]),
        size_bytes=int(body["size_bytes"]),
        is_recorded=bool(body["recorded"]),
        positions_done=int(body.get("positions_done", 0)),
        by_retention=bool(body.get("by_retention", False)),
    )

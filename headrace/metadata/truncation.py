"""The head of a stream that was truncated: the stream cut at which the stream begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.metadata.record_layout import decode_segments, decoded, segment_rows, stream_partition, versioned
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.streams import Stream
from headrace.model.truncation import RunningTruncation, Truncation
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace

TRUNCATION_SORT = "truncation"


def truncation_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), TRUNCATION_SORT)


def truncation_body(truncation: Truncation) -> dict[str, Any]:
    return versioned(**truncation_fields(truncation))


def decode_truncation(body: Body) -> Truncation:
    return decoded("truncation", body, decode_truncation_fields)


def read_truncation(record: Record | None) -> Truncation | None:
    """The truncation in a record; None if the stream was never truncated."""
    return decode_truncation(record.body) if record else None


def write_truncation(store: MetadataStore, stream: Stream, truncation: Truncation) -> Create | Replace:
    """The write of a new head, on condition that the record does not change; one read."""
    key, body = truncation_key(stream.scope, stream.name), truncation_body(truncation)
    record = store.get(key)
    return Create(key, body) if record is None else Replace(key, body, record.version)


def placed_cut_fields(placed: PlacedCut) -> dict[str, Any]:
    """A cut with its segments as part of a body."""
    cut = placed.cut
    return {
        "scope": cut.scope,
        "stream": cut.stream,
        "positions": [list(position) for position in cut.positions],
        "segments": segment_rows(placed.segments),
    }


def decode_placed_cut(fields: Mapping[str, Any]) -> PlacedCut:
    positions = tuple((int(identifier), int(offset)) for identifier, offset in fields["positions"])
    cut = StreamCut(str(fields["scope"]), str(fields["stream"]), positions)
    return PlacedCut(cut, decode_segments(fields["segments"]))


def truncation_fields(truncation: Truncation) -> dict[str, Any]:
    """A truncation as part of a body."""
    return {
        "head": placed_cut_fields(truncation.head),
        "first_epoch": truncation.first_epoch,
        "size_bytes": truncation.size_bytes,
    }


def decode_truncation_fields(fields: Body) -> Truncation:
    return Truncation(decode_placed_cut(fields["head"]), int(fields["first_epoch"]), int(fields["size_bytes"]))


# The running truncation of a stream, and how far it has come.

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

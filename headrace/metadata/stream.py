"""The current record of a stream: its state, configuration, pending request and which epoch is active.

Every operation checks or replaces this record, and the cost of that grows with its size. So an epoch of many segments
and long tags are not part of it: the record then names them. Their own records never change and are cached in memory.
`stream_records` reads the record together with those that it names, and writes it.

A deleted stream leaves a tombstone in its place. It has the first segment number of the next stream of that name, so
that segment names are never reused. Its version continues to grow, so that a process that read the record of an earlier
incarnation cannot write that of the present one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.metadata.record_layout import decode_segments, decoded, segment_rows, stream_partition, versioned
from headrace.model.epochs import Epoch
from headrace.model.errors import CorruptError, NotFoundError
from headrace.model.log_classes import LogClass
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_configuration import (
    ConfigurationUpdate,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace

# The tags of a stream that are too long for its current record, which names them: written once, never changed.

TAGS_IN_CURRENT_BYTES_MAX = 256
"""Tags that take so many bytes as JSON are part of the current record: with them it stays below the KiB of a write
unit, and a process that has just started saves a read."""

_PREFIX = "tags/"


class TagsReference(msgspec.Struct, frozen=True):
    """Which record has the tags: that of the configuration version with which they came.

    `first_segment_number` is that of the incarnation, in which each version is given once.
    """

    scope: str
    stream: str
    first_segment_number: int
    version: int


def fit_in_current(tags: Sequence[str]) -> bool:
    return len(json.dumps(list(tags), separators=(",", ":"))) <= TAGS_IN_CURRENT_BYTES_MAX


def stream_tags_sort(first_segment_number: int, version: int) -> str:
    return f"{_PREFIX}{first_segment_number:010d}/{version:010d}"


def stream_tags_key(scope: str, stream: str, first_segment_number: int, version: int) -> Key:
    return Key(stream_partition(scope, stream), stream_tags_sort(first_segment_number, version))


def stream_tags_body(tags: Sequence[str]) -> dict[str, Any]:
    return versioned(tags=list(tags))


def decode_stream_tags(body: Body) -> tuple[str, ...]:
    return decoded("stream tags", body, lambda fields: tuple(str(tag) for tag in fields["tags"]))


# An epoch of a stream: written once, never changed.

_EPOCH_PREFIX = "epoch/"


def epoch_sort(number: int) -> str:
    return f"{_EPOCH_PREFIX}{number:010d}"


def epoch_key(scope: str, stream: str, number: int) -> Key:
    return Key(stream_partition(scope, stream), epoch_sort(number))


def epoch_body(epoch: Epoch) -> dict[str, Any]:
    return versioned(**epoch_fields(epoch))


def decode_epoch(body: Body) -> Epoch:
    return decoded("epoch", body, decode_epoch_fields)


def epoch_fields(epoch: Epoch) -> dict[str, Any]:
    """An epoch as part of a body."""
    return {
        "number": epoch.number,
        "created": epoch.creation_time_ms,
        "segments": segment_rows(epoch.segments),
        "replaced": segment_rows(epoch.replaced),
        "duplicate_of": epoch.duplicate_of,
    }


def decode_epoch_fields(fields: Body) -> Epoch:
    """An epoch that is part of a body."""
    return Epoch(
        number=int(fields["number"]),
        creation_time_ms=int(fields["created"]),
        segments=decode_segments(fields["segments"]),
        replaced=decode_segments(fields["replaced"]),
        duplicate_of=None if fields["duplicate_of"] is None else int(fields["duplicate_of"]),
    )


def read_epochs(store: MetadataStore, stream: Stream, first: int, limit: int) -> list[Epoch]:
    """The recorded epochs from number `first` to the active one, in order, at most `limit`; one query."""
    partition, last = stream_partition(stream.scope, stream.name), epoch_sort(stream.epoch.number)
    page = store.query(partition, first=epoch_sort(first), last=last, limit=limit)
    return [decode_epoch(record.body) for record in page.records]


# The epoch that a running scale creates, until the scale is complete. Its body is that of an epoch.

TRANSITION_SORT = "transition"


def transition_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), TRANSITION_SORT)


def find_transition(store: MetadataStore, stream: Stream) -> Epoch | None:
    """The epoch that a running scale leads to; one read."""
    record = store.get(transition_key(stream.scope, stream.name))
    return decode_epoch(record.body) if record else None


def create_transition(stream: Stream, epoch: Epoch) -> Create:
    return Create(transition_key(stream.scope, stream.name), epoch_body(epoch))


def replace_transition(stream: Stream, epoch: Epoch) -> Replace:
    """The first change of a plan; its transaction also writes the current record, whose version is checked."""
    return Replace(transition_key(stream.scope, stream.name), epoch_body(epoch), 0)


def delete_transition(stream: Stream) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return Delete(transition_key(stream.scope, stream.name), None)


# The configuration of a stream as part of a body: in the current record, in its update and in dead letters.


def configuration_fields(configuration: StreamConfiguration) -> dict[str, Any]:
    """A configuration as part of a body. The default class is left out."""
    scaling, retention = configuration.scaling, configuration.retention
    log_class = {} if configuration.log_class is LogClass.STORES else {"log_class": str(configuration.log_class)}
    return log_class | {
        "scaling": [str(scaling.type), scaling.min_segments, scaling.target_rate, scaling.scale_factor],
        "retention": [str(retention.type), retention.value, retention.max_value] if retention else None,
        "tags": list(configuration.tags),
        "timestamp_aggregation_timeout_ms": configuration.timestamp_aggregation_timeout_ms,
        "rollover_size_bytes": configuration.rollover_size_bytes,
    }


def decode_configuration(fields: Body) -> StreamConfiguration:
    scaling_type, min_segments, target_rate, scale_factor = fields["scaling"]
    return StreamConfiguration(
        scaling=ScalingPolicy(ScalingType(scaling_type), int(min_segments), int(target_rate), int(scale_factor)),
        retention=_retention(fields["retention"]),
        tags=tuple(fields["tags"]),
        timestamp_aggregation_timeout_ms=int(fields["timestamp_aggregation_timeout_ms"]),
        rollover_size_bytes=int(fields["rollover_size_bytes"]),
        log_class=LogClass(fields.get("log_class", LogClass.STORES)),
    )


def _retention(fields: Any) -> RetentionPolicy | None:
    if fields is None:
        return None
    retention_type, value, max_value = fields
    return RetentionPolicy(RetentionType(retention_type), int(value), None if max_value is None else int(max_value))


CURRENT_SORT = "current"

SEGMENTS_IN_CURRENT_MAX = 8
"""An epoch with so many segments, including those that it replaced, is part of the current record. With a few of them
the record stays below the KiB of a write unit, and a process that has just started saves a read."""

_VERSIONS_OF_SEGMENT_NUMBER = 1 << 32
"""Versions that a record can have in an incarnation, which begins at a segment number of its own: one a second for 136
years."""


class EpochReference(msgspec.Struct, frozen=True):
    """Which epoch is active in a current record that does not hold it.

    `creation_time_ms` and `next_segment_number` tell an epoch of this incarnation of the stream from one of another.
    """

    scope: str
    stream: str
    first_segment_number: int
    number: int
    creation_time_ms: int
    next_segment_number: int

    def is_of(self, epoch: Epoch) -> bool:
        """Whether this is the epoch."""
        return (self.number, self.creation_time_ms, self.next_segment_number) == (
            epoch.number,
            epoch.creation_time_ms,
            epoch.next_segment_number,
        )


def current_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), CURRENT_SORT)


def stream_body(stream: Stream, tags_version: int | None = None) -> dict[str, Any]:
    """With `tags_version` the record does not hold the tags, but names the record that does."""
    following = {"following": _request_fields(stream.following)} if stream.following else {}
    return versioned(
        scope=stream.scope,
        name=stream.name,
        state=str(stream.state),
        configuration=_configuration_in_current(stream.configuration, tags_version),
        configuration_version=stream.configuration_version,
        created=stream.creation_time_ms,
        first_number=stream.first_segment_number,
        epoch=_epoch_in_current(stream.epoch),
        recorded_epoch=stream.recorded_epoch,
        pending=_request_fields(stream.pending) if stream.pending else None,
        **following,
    )


def is_tombstone(body: Body) -> bool:
    return "next_number" in body


def epoch_reference(body: Body) -> EpochReference | None:
    """The active epoch that a current record names; None if the record holds it, or is a tombstone."""
    return None if is_tombstone(body) else decoded("stream", body, _epoch_reference)


def tags_reference(body: Body) -> TagsReference | None:
    """The tags that a current record names; None if the record holds them, or is a tombstone."""
    return None if is_tombstone(body) else decoded("stream", body, _tags_reference)


def decode_stream(body: Body, epoch: Epoch | None = None, tags: Sequence[str] | None = None) -> Stream | None:
    """The stream; None for a tombstone. `epoch` is the active one and `tags` are its tags if the record names them.

    Raises:
        CorruptError: the record does not decode, or it names another epoch, or tags that are not given.
    """
    if is_tombstone(body):
        return None
    reference = epoch_reference(body)
    if reference is not None and (epoch is None or not reference.is_of(epoch)):
        raise CorruptError(f"the active epoch {reference.number} of {reference.scope}/{reference.stream} is missing")
    named_tags = tags_reference(body)
    if named_tags is not None and tags is None:
        raise CorruptError(f"the tags {named_tags.version} of {named_tags.scope}/{named_tags.stream} are missing")
    known = (epoch if reference is not None else None, tags if named_tags is not None else None)
    return decoded("stream", body, lambda fields: _stream(fields, *known))


def tombstone_body(next_segment_number: int) -> dict[str, Any]:
    return versioned(next_number=next_segment_number)


def decode_tombstone(body: Body) -> int:
    return decoded("tombstone", body, lambda fields: int(fields["next_number"]))


def _epoch_in_current(epoch: Epoch) -> dict[str, Any]:
    if len(epoch.segments) + len(epoch.replaced) <= SEGMENTS_IN_CURRENT_MAX:
        return epoch_fields(epoch)
    return {"number": epoch.number, "created": epoch.creation_time_ms, "next_number": epoch.next_segment_number}


def _epoch_reference(body: Body) -> EpochReference | None:
    fields: Mapping[str, Any] = body["epoch"]
    if "segments" in fields:
        return None
    return EpochReference(
        scope=str(body["scope"]),
        stream=str(body["name"]),
        first_segment_number=int(body["first_number"]),
        number=int(fields["number"]),
        creation_time_ms=int(fields["created"]),
        next_segment_number=int(fields["next_number"]),
    )


def _tags_reference(body: Body) -> TagsReference | None:
    version = body["configuration"].get("tags_version")
    if version is None:
        return None
    return TagsReference(str(body["scope"]), str(body["name"]), int(body["first_number"]), int(version))


def _configuration_in_current(configuration: StreamConfiguration, tags_version: int | None) -> dict[str, Any]:
    fields = configuration_fields(configuration)
    return fields if tags_version is None else fields | {"tags": None, "tags_version": tags_version}


def _stream(body: Body, epoch: Epoch | None, tags: Sequence[str] | None) -> Stream:
    configuration = body["configuration"] if tags is None else {**body["configuration"], "tags": tags}
    return Stream(
        scope=str(body["scope"]),
        name=str(body["name"]),
        state=StreamState(body["state"]),
        configuration=decode_configuration(configuration),
        configuration_version=int(body["configuration_version"]),
        creation_time_ms=int(body["created"]),
        first_segment_number=int(body["first_number"]),
        epoch=epoch or decode_epoch_fields(body["epoch"]),
        recorded_epoch=int(body["recorded_epoch"]),
        pending=_pending(body["pending"]),
        following=_pending(body.get("following")),
    )


def _request_fields(request: PendingRequest) -> list[str]:
    return [str(request.kind), request.request_id]


def _pending(fields: Any) -> PendingRequest | None:
    if fields is None:
        return None
    kind, request_id = fields
    return PendingRequest(RequestKind(kind), str(request_id))


def is_stream(record: Record | None) -> bool:
    """Whether a current record exists and is not a tombstone."""
    return record is not None and not is_tombstone(record.body)


def create_in_incarnation(stream: Stream, key: Key, body: Body) -> Create:
    """The write of a record that goes with the stream, and that the next stream of the name may have again.

    Its versions are above all of a former incarnation, so that what was read in one is not written in another.
    """
    return Create(key, body, stream.first_segment_number * _VERSIONS_OF_SEGMENT_NUMBER)


def no_such_stream(scope: str, stream: str) -> NotFoundError:
    return NotFoundError(f"there is no stream {scope}/{stream}", details={"scope": scope, "stream": stream})


def first_segment_number(tombstone: Record | None) -> int:
    """The first segment number of a new stream, whose name had no stream before, or one that left a tombstone."""
    return decode_tombstone(tombstone.body) if tombstone else 0


# The running update of a stream's configuration.

UPDATE_SORT = "updating"


def configuration_update_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), UPDATE_SORT)


def configuration_update_body(update: ConfigurationUpdate) -> dict[str, Any]:
    return versioned(
        before=configuration_fields(update.before),
        after=configuration_fields(update.after),
        version=update.version,
    )


def decode_configuration_update(body: Body) -> ConfigurationUpdate:
    return decoded("configuration update", body, _update)


def find_configuration_update(store: MetadataStore, stream: Stream) -> ConfigurationUpdate | None:
    """The running update; one read."""
    record = store.get(configuration_update_key(stream.scope, stream.name))
    return decode_configuration_update(record.body) if record else None


def create_configuration_update(stream: Stream, update: ConfigurationUpdate) -> Create:
    return Create(configuration_update_key(stream.scope, stream.name), configuration_update_body(update))


def delete_configuration_update(stream: Stream) -> Delete:
    """Unconditional: its transaction also writes the current record, whose version is checked."""
    return Delete(configuration_update_key(stream.scope, stream.name), None)


def _update(body: Body) -> ConfigurationUpdate:
    return ConfigurationUpdate(
        decode_configuration(body["before"]), decode_configuration(body["after"]), int(body["version"])
    )

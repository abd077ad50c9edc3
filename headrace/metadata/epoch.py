"""An epoch of a stream: written once, never changed."""

from __future__ import annotations

from typing import Any

from headrace.metadata.record_layout import decode_segments, decoded, segment_rows, stream_partition, versioned
from headrace.model.epochs import Epoch
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Replace

_PREFIX = "epoch/"


def epoch_sort(number: int) -> str:
    return f"{_PREFIX}{number:010d}"


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

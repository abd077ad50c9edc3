"""The epoch that a running scale creates, until the scale is complete. Its body is that of an epoch."""

from __future__ import annotations

from headrace.metadata.epoch import decode_epoch, epoch_body
from headrace.metadata.record_layout import stream_partition
from headrace.model.epochs import Epoch
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Create, Delete, Key, MetadataStore, Replace

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

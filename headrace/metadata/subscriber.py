"""A subscriber of a stream: how far a reader group has read it; the writes that register and remove one.

The key has the first segment number of the stream's incarnation, so that no subscriber outlives its stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.metadata.retention_records import retention_key
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.truncation import decode_placed_cut, placed_cut_fields
from headrace.model.errors import NotFoundError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.streams import Stream
from headrace.model.subscribers import Subscriber, check_not_newer, registered_again
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace, Write

_RECORDS_PER_READ = 1_000


@dataclass(frozen=True, slots=True)
class StoredSubscriber:
    """A subscriber as it was read, and the version of its record."""

    subscriber: Subscriber
    version: int


@dataclass(frozen=True, slots=True)
class SubscriberPage:
    """Subscribers by name; `next_after` is the name to continue after, None at the end."""

    subscribers: tuple[Subscriber, ...]
    next_after: str | None


def subscribers_prefix(first_segment_number: int) -> str:
    """The prefix of the sort keys of all subscribers of a stream."""
    return f"subscriber/{first_segment_number:010d}/"


def subscriber_sort(first_segment_number: int, name: str) -> str:
    return f"{subscribers_prefix(first_segment_number)}{name}"


def subscriber_key(scope: str, stream: str, first_segment_number: int, name: str) -> Key:
    return Key(stream_partition(scope, stream), subscriber_sort(first_segment_number, name))


def subscriber_body(subscriber: Subscriber) -> dict[str, Any]:
    return versioned(
        name=subscriber.name,
        generation=subscriber.generation,
        position=placed_cut_fields(subscriber.position),
        updated=subscriber.updated_ms,
    )


def decode_subscriber(body: Body) -> Subscriber:
    return decoded(
        "subscriber",
        body,
        lambda fields: Subscriber(
            str(fields["name"]),
            int(fields["generation"]),
            decode_placed_cut(fields["position"]),
            int(fields["updated"]),
        ),
    )


class SubscriberRecords:
    """Reads and writes; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def find(self, stream: Stream, name: str) -> StoredSubscriber | None:
        """One read."""
        record = self.store.get(subscriber_key(stream.scope, stream.name, stream.first_segment_number, name))
        return StoredSubscriber(decode_subscriber(record.body), record.version) if record else None

    def get(self, stream: Stream, name: str) -> StoredSubscriber:
        """One read; raises NotFoundError, code "subscriber_not_found"."""
        found = self.find(stream, name)
        if found is None:
            raise no_such_subscriber(stream, name)
        return found

    def find_with_retention(self, stream: Stream, name: str) -> tuple[StoredSubscriber | None, Record | None]:
        """The subscriber, and the record of the stream's retention state; one batch read."""
        number = stream.first_segment_number
        subscriber, retention = self.store.get_many(
            [
                subscriber_key(stream.scope, stream.name, number, name),
                retention_key(stream.scope, stream.name, number),
            ]
        )
        if subscriber is None:
            return None, retention
        return StoredSubscriber(decode_subscriber(subscriber.body), subscriber.version), retention

    def page(self, stream: Stream, limit: int, after: str | None = None) -> SubscriberPage:
        """The subscribers whose names follow `after`, at most `limit` and about PAGE_BYTES_MAX bytes; one query."""
        prefix = subscribers_prefix(stream.first_segment_number)
        partition = stream_partition(stream.scope, stream.name)
        first = prefix if after is None else f"{prefix}{after}\0"
        found = self.store.query(
            partition, first=first, last=f"{prefix}\U0010ffff", limit=limit, bytes_max=PAGE_BYTES_MAX
        )
        next_after = None if found.next_after is None else found.next_after.removeprefix(prefix)
        return SubscriberPage(tuple(decode_subscriber(record.body) for record in found.records), next_after)

    def all(self, stream: Stream) -> list[Subscriber]:
        """All subscribers of the stream; one query for each thousand."""
        page = self.page(stream, _RECORDS_PER_READ)
        found = list(page.subscribers)
        while page.next_after is not None:
            page = self.page(stream, _RECORDS_PER_READ, page.next_after)
            found += page.subscribers
        return found

    def replace(self, stream: Stream, before: StoredSubscriber, after: Subscriber) -> None:
        """One write; raises WriteConflictError if the subscriber is not the one that was read."""
        key = subscriber_key(stream.scope, stream.name, stream.first_segment_number, after.name)
        self.store.write(Replace(key, subscriber_body(after), before.version))


def register_writes(
    stored: StoredStream,
    before: StoredSubscriber | None,
    after: Subscriber,
    retention: Record | None,
    *,
    from_start: bool,
) -> list[Write]:
    """The writes that register a reader group in a generation as a subscriber: `after`, with its first position.

    A registered subscriber keeps its position, unless its generation grows and the group starts again (`from_start`).
    Registering the same generation again writes nothing. `retention` is the record of the stream's retention state. It
    is written again unchanged: its new version makes a truncation fail that was planned without this subscriber.

    Raises:
        IllegalStateError: code "generation_mismatch": the group is in a later generation.
    """
    registered = after
    if before is not None:
        registered = registered_again(before.subscriber, after, from_start=from_start)
        if registered == before.subscriber:
            return []
    return _position_writes(stored, before, registered, retention)


def subscribe_writes(
    stored: StoredStream, before: StoredSubscriber | None, after: Subscriber, retention: Record | None
) -> list[Write]:
    """The writes with which a group's own workflow subscribes it, on condition that the group's record is unchanged.

    The group's record has its generation. So a subscriber that another caller has registered under this name in another
    generation is replaced. The same generation writes nothing. `retention` is as in `register_writes`.
    """
    if before is not None and before.subscriber.generation == after.generation:
        return []
    return _position_writes(stored, before, after, retention)


def _position_writes(
    stored: StoredStream, before: StoredSubscriber | None, after: Subscriber, retention: Record | None
) -> list[Write]:
    """The writes that put the subscriber with its first position in the place of the one that was read."""
    stream = stored.stream
    key = subscriber_key(stream.scope, stream.name, stream.first_segment_number, after.name)
    body = subscriber_body(after)
    writes: list[Write] = [Create(key, body) if before is None else Replace(key, body, before.version)]
    if retention is not None:
        writes.append(Replace(retention.key, retention.body, retention.version))
    # Without these checks a record could be written for a deleted stream, or a position before a head that has moved.
    return stored.unchanged(*writes)


def unregister_writes(stream: Stream, before: StoredSubscriber | None, generation: int) -> list[Write]:
    """The writes that remove a subscriber; empty if there is none.

    Raises:
        IllegalStateError: code "generation_mismatch": the group is in a later generation.
    """
    if before is None:
        return []
    check_not_newer(before.subscriber, generation)
    return unsubscribe_writes(stream, before)


def unsubscribe_writes(stream: Stream, before: StoredSubscriber | None) -> list[Write]:
    """The writes with which a group's own workflow unsubscribes it, in any generation; empty if there is none."""
    if before is None:
        return []
    name = before.subscriber.name
    return [Delete(subscriber_key(stream.scope, stream.name, stream.first_segment_number, name), before.version)]


def no_such_subscriber(stream: Stream, name: str) -> NotFoundError:
    return NotFoundError(
        f"stream {stream.scoped_name} has no subscriber {name}: register it first",
        details={"subscriber": name},
        code="subscriber_not_found",
    )

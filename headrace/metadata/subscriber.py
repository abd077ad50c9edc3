"""A subscriber of a stream: how far a reader group has read it; the writes that register and remove one.

The key has the first segment number of the stream's incarnation, so that no subscriber outlives its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.metadata.retention_records import retention_key
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.truncation import decode_placed_cut, placed_cut_fields
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.reader_groups import GroupStream
from headrace.model.stream_cuts import PlacedCut
from headrace.model.streams import Stream
from headrace.model.subscribers import Subscriber, check_not_newer, cut_not_valid, registered_again, upper_bound
from headrace.model.truncation import RunningTruncation, Truncation, very_beginning
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import (
    Body,
    Check,
    Create,
    Delete,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
    WriteConflictError,
)

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
        stored = self.find(stream, name)
        if stored is None:
            raise no_such_subscriber(stream, name)
        return stored

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
        records = self.store.query(
            partition, first=first, last=f"{prefix}\U0010ffff", limit=limit, bytes_max=PAGE_BYTES_MAX
        )
        next_after = None if records.next_after is None else records.next_after.removeprefix(prefix)
        return SubscriberPage(tuple(decode_subscriber(record.body) for record in records.records), next_after)

    def all(self, stream: Stream) -> list[Subscriber]:
        """All subscribers of the stream; one query for each thousand."""
        page = self.page(stream, _RECORDS_PER_READ)
        subscribers = list(page.subscribers)
        while page.next_after is not None:
            page = self.page(stream, _RECORDS_PER_READ, page.next_after)
            subscribers += page.subscribers
        return subscribers

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


# The positions of a stream's subscribers, and the changes of workflows to the subscriptions of reader groups.

_ATTEMPTS_MAX = 8


class SubscriberPlaces:
    """Converts the offsets that readers publish to a cut with its segments; safe for any number of threads."""

    def __init__(self, history: HistoryRecords) -> None:
        self._history = history
        self._cuts = PlacedCuts(history)

    def place(self, stream: Stream, offsets: Mapping[int, int]) -> PlacedCut:
        """The cut at these offsets, with its segments.

        An offset of -1 is replaced as `PlacedCuts.resolved` tells.

        Raises:
            InvalidRequestError: code "stream_cut_not_valid".
        """
        try:
            return self._cuts.check(stream, self._cuts.resolved(stream, offsets))
        except (InvalidRequestError, NotFoundError) as error:
            raise cut_not_valid(error.message, error.details) from error

    def begin(
        self,
        stream: Stream,
        truncation: Truncation | None,
        running: RunningTruncation | None,
        start: Mapping[int, int] | None,
    ) -> PlacedCut:
        """Where a new subscriber starts: at `start` (offset by segment id), or else at the head of the stream.

        In no key range is this before the target of a running truncation, which was planned without the subscriber.

        Raises:
            InvalidRequestError: code "stream_cut_not_valid".
        """
        place = self.place(stream, start) if start is not None else self._head(stream, truncation)
        return upper_bound([place, running.target]) if running else place

    def _head(self, stream: Stream, truncation: Truncation | None) -> PlacedCut:
        if truncation is not None:
            return truncation.head
        first = self._history.epoch(stream, 0)
        return PlacedCut(very_beginning(stream.scope, stream.name, first), first.segments)


class Subscriptions:
    """Subscribes reader groups to streams on behalf of their workflows; every step may be repeated.

    If the stream was deleted, nothing happens. `condition` is a check that the group's own record, which has its
    generation, is still the one that was read. Both methods raise WriteConflictError if it is not. If it is, they
    replace a subscriber that another caller registered under the group's name, in any generation.
    """

    def __init__(self, store: MetadataStore, clock: Clock, streams: StreamRecords | None = None) -> None:
        self._store = store
        self._streams = streams or StreamRecords(store)
        self._records = SubscriberRecords(store)
        self._places = SubscriberPlaces(self._streams.history)
        self._clock = clock

    def subscribe(self, stream: GroupStream, subscriber: str, generation: int, condition: Check) -> None:
        """Make the stream's retention wait for the group, from the group's start in the stream, or from the head.

        Each later generation starts there again, because the group may have been reset and its readers start again. A
        start that is not a cut of the stream is replaced by the head: the stream may have been created again since.
        """

        def writes() -> list[Write]:
            stored, truncation, running = self._streams.get_with_truncations(stream.scope, stream.stream)
            before, retention = self._records.find_with_retention(stored.stream, subscriber)
            start = stream.start.offsets if stream.start else None
            try:
                place = self._places.begin(stored.stream, truncation, running, start)
            except InvalidRequestError:
                place = self._places.begin(stored.stream, truncation, running, None)
            after = Subscriber(subscriber, generation, place, self._clock.now_ms())
            return subscribe_writes(stored, before, after, retention)

        self._write(condition, writes)

    def unsubscribe(self, scope: str, stream: str, subscriber: str, condition: Check) -> None:
        """Make the stream's retention no longer wait for the group."""

        def writes() -> list[Write]:
            current = self._streams.get(scope, stream).stream
            return unsubscribe_writes(current, self._records.find(current, subscriber))

        self._write(condition, writes)

    def _write(self, condition: Check, writes: Callable[[], list[Write]]) -> None:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                wanted = writes()
                if wanted:
                    self._store.write(condition, *wanted)
            except NotFoundError:
                return
            except WriteConflictError as error:
                if 0 in error.failed or attempt == _ATTEMPTS_MAX - 1:
                    raise
            else:
                return

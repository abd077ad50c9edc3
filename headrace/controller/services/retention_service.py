"""Retention of a stream, and the subscribers that it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from headrace.api.listings import Listing
from headrace.api.retention import NextTruncation, RetentionDescription
from headrace.api.stream_cuts import StreamCutView
from headrace.controller.acceptance import CheckWritten
from headrace.controller.services.paging import check_page_limit
from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.metadata.reader_group import ReaderGroupRecords, StoredGroup
from headrace.metadata.retention_plans import Plan, RetentionPlanner, tail_of
from headrace.metadata.retention_records import RetainedStream, RetentionRecords
from headrace.metadata.stream import no_such_stream
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import SubscriberPlaces, SubscriberRecords, register_writes, unregister_writes
from headrace.model.errors import InvalidRequestError, UnavailableError
from headrace.model.retention import WORDS, RetentionCut, cuts_after_head
from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cuts import CutOrder, PlacedCut, compare_cuts
from headrace.model.streams import Stream
from headrace.model.subscribers import (
    Subscriber,
    check_generation,
    check_group_generation,
    check_subscriber_name,
    cut_not_valid,
    moved,
    registered_again,
)
from headrace.ports.clock import Clock, time_limit
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores

# Retention status of a stream: how much is kept, since when, and what will be truncated next and why.
#
# The service reads the records that the retention tick reads and applies the same rules, but writes nothing.

NO_POLICY = "the stream has no retention policy: nothing is truncated"
NOTHING_YET = "there are no bytes before the place where the stream may be truncated: nothing is truncated"


class RetentionService:
    """Called by the retention route of the API; safe for any number of threads."""

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores, clock: Clock) -> None:
        self._streams = StreamRecords(store)
        self._records = RetentionRecords(store)
        self._planner = RetentionPlanner(store)
        self._subscribers = SubscriberRecords(store)
        self._segment_stores = segment_stores
        self._clock = clock

    def describe(self, scope: str, stream: str) -> RetentionDescription:
        """The retention status of a stream now.

        Costs three reads, two queries, a request to the segment stores, and a read of each cut that the rules need.

        Raises:
            NotFoundError: there is no such stream.
            UnavailableError: the stream is being created, a segment store does not answer, or segments are being
                sealed.
        """
        current = self._streams.get(scope, stream).stream
        if not current.state.is_readable:
            raise UnavailableError(
                f"stream {current.scoped_name} is being created: repeat until it is ACTIVE", code="stream_not_ready"
            )
        retained = self._records.load(scope, stream, current.first_segment_number)
        if retained is None:
            raise no_such_stream(scope, stream)
        now_ms = self._clock.now_ms()
        state = retained.retention.state if retained.retention else None
        cuts, passed = cuts_after_head(state.cuts if state else (), retained.head_bytes)
        plan = self._planner.plan(retained, cuts, {}, now_ms)
        policy = retained.stream.configuration.retention
        return RetentionDescription(
            scope=scope,
            stream=stream,
            policy=policy,
            time_ms=now_ms,
            oldest_event_ms=passed[-1].time_ms if passed else _created_or_known(retained),
            kept_bytes=self._tail_bytes(retained, cuts[-1] if cuts else None) - retained.head_bytes,
            retention_set=len(cuts),
            oldest_cut_ms=cuts[0].time_ms if cuts else None,
            newest_cut_ms=cuts[-1].time_ms if cuts else None,
            subscribers=len(self._subscribers.all(retained.stream)),
            next_cut_time_ms=None if state is None or state.due_ms is None else max(now_ms, state.due_ms),
            next=NextTruncation(
                case=plan.decision.case,
                why=_words(plan, policy),
                bytes=plan.size_bytes - retained.head_bytes if plan.target else 0,
                cut=StreamCutView.of(plan.target.cut) if plan.target else None,
            ),
        )

    def _tail_bytes(self, retained: RetainedStream, newest: RetentionCut | None) -> int:
        """The bytes that were written to the stream since its creation."""
        stream = retained.stream
        place = tail_of(self._segment_stores, stream)
        before = self._records.cut(stream, newest) if newest else retained.truncation
        return self._planner.size_at(stream, place, before)


def _created_or_known(retained: RetainedStream) -> int:
    known = retained.retention.state.head_time_ms if retained.retention else 0
    return max(known, retained.stream.creation_time_ms)


def _words(plan: Plan, policy: RetentionPolicy | None) -> str:
    if policy is None:
        return NO_POLICY
    return NOTHING_YET if plan.target is None and plan.decision.cut else WORDS[plan.decision.case]


# Subscribers of streams: reader groups that retention waits for. List, register, publish a position, unregister.
#
# A reader group registers with the generation of its configuration. It then publishes stream cuts, at its checkpoints
# or on request: it no longer needs the events before the cut. A position never moves backwards within a generation.

GENERATION_MAX = (1 << 63) - 1

TAIL_CHECK_S = 3.0
"""How long a published position waits for the stores to say where the tail is. The reader that publishes waits for the
answer, and enough time must be left to note the position."""


class SubscriberService:
    """Called by the subscriber routes of the API and by reader groups; safe for any number of threads.

    Every method raises NotFoundError if there is no such stream, and InvalidRequestError, code "invalid_name", for an
    invalid subscriber name.
    """

    def __init__(self, store: MetadataStore, clock: Clock, check_written: CheckWritten | None = None) -> None:
        """`check_written` refuses positions beyond the tail of the stream; without it they are accepted."""
        self._store = store
        self._streams = StreamRecords(store)
        self._records = SubscriberRecords(store)
        self._places = SubscriberPlaces(self._streams.history)
        self._groups = ReaderGroupRecords(store)
        self._clock = clock
        self._check_written = check_written

    def list_subscribers(self, scope: str, stream: str, limit: int, after: str | None = None) -> Listing[Subscriber]:
        """Subscribers in the order of their names, after `after`."""
        current = self._streams.get(scope, stream).stream
        page = self._records.page(current, check_page_limit(limit), after)
        return Listing(page.subscribers, page.next_after)

    def get_subscriber(self, scope: str, stream: str, name: str) -> Subscriber:
        """The subscriber of this name; raises NotFoundError, code "subscriber_not_found"."""
        return self._records.get(self._streams.get(scope, stream).stream, check_subscriber_name(name)).subscriber

    def register(
        self, scope: str, stream: str, name: str, generation: int, start: Mapping[int, int] | None = None
    ) -> Subscriber:
        """Register a reader group that needs all events from `start` (offset by segment id), or from the head.

        While the stream is being truncated, the position is at the new head or after it; the answer contains it.

        A repeat with the same generation changes nothing. A later generation replaces an earlier one, and moves the
        position to `start` if that is given. If `name` is that of an existing reader group (`scope/group`), the
        generation must be the present one of that group.

        Raises:
            InvalidRequestError: code "stream_cut_not_valid".
            IllegalStateError: code "generation_mismatch": the group is in another generation.
        """
        check_subscriber_name(name)
        return repeat_on_conflict(lambda: self._try_to_register(scope, stream, name, generation, start))

    def update_stream_cut(
        self, scope: str, stream: str, name: str, generation: int, offsets: Mapping[int, int]
    ) -> Subscriber:
        """Publish the cut before which the group needs no events; a repeat with the same cut changes nothing.

        An offset of -1 is the end of a sealed segment, or marks a segment that the group has not reached (`cut_ends`).

        Raises:
            NotFoundError: code "subscriber_not_found".
            IllegalStateError: code "generation_mismatch".
            InvalidRequestError: code "stream_cut_not_valid": not a cut of the stream, or before the present position.
        """
        check_subscriber_name(name)
        return repeat_on_conflict(lambda: self._try_to_update(scope, stream, name, generation, offsets))

    def unregister(self, scope: str, stream: str, name: str, generation: int) -> None:
        """Remove a subscriber, so that retention no longer waits for it; no effect if it is not registered.

        Raises:
            IllegalStateError: code "generation_mismatch": the group is in a later generation.
        """
        check_subscriber_name(name)

        def attempt() -> None:
            current = self._streams.get(scope, stream).stream
            before = self._records.find(current, name)
            writes = unregister_writes(current, before, generation)
            if writes:
                self._store.write(*writes)

        repeat_on_conflict(attempt)

    def _try_to_register(
        self, scope: str, stream: str, name: str, generation: int, start: Mapping[int, int] | None
    ) -> Subscriber:
        stored, truncation, running = self._streams.get_with_truncations(scope, stream)
        group = self._group_of(name)
        if group is not None:
            check_group_generation(name, group.group.generation, generation)
        before, retention = self._records.find_with_retention(stored.stream, name)
        place = self._places.begin(stored.stream, truncation, running, start)
        if start is not None:
            self._refuse_unwritten(stored.stream, place)
        after = Subscriber(name, generation, place, self._clock.now_ms())
        writes = register_writes(stored, before, after, retention, from_start=start is not None)
        if writes:
            self._store.write(*writes, *([group.unchanged] if group else []))
        return registered_again(before.subscriber, after, from_start=start is not None) if before else after

    def _refuse_unwritten(self, stream: Stream, place: PlacedCut) -> None:
        """A position beyond the tail would let retention delete events that no reader has seen."""
        if self._check_written is None:
            return
        try:
            self._check_written(stream, place.cut)
        except InvalidRequestError as error:
            raise cut_not_valid(error.message, error.details) from error

    def _group_of(self, name: str) -> StoredGroup | None:
        """The reader group of this name, or None."""
        scope, slash, group = name.rpartition("/")
        return self._groups.find(scope, group) if slash else None

    def _try_to_update(
        self, scope: str, stream: str, name: str, generation: int, offsets: Mapping[int, int]
    ) -> Subscriber:
        current = self._streams.get(scope, stream).stream
        stored = self._records.get(current, name)
        check_generation(stored.subscriber, generation)
        place = self._places.place(current, offsets)
        after = moved(stored.subscriber, generation, place, self._clock.now_ms())
        if compare_cuts(stored.subscriber.position, place) is CutOrder.EQUAL_OR_AFTER:
            return stored.subscriber
        # A group goes on while a store is away; a truncation checks the length again.
        with suppress(UnavailableError), time_limit(self._clock, TAIL_CHECK_S):
            self._refuse_unwritten(current, place)
        self._records.replace(current, stored, after)
        return after

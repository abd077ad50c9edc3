"""The positions of a stream's subscribers, and the changes of workflows to the subscriptions of reader groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import SubscriberRecords, subscribe_writes, unsubscribe_writes
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.reader_groups import GroupStream
from headrace.model.stream_cut_order import PlacedCut
from headrace.model.streams import Stream
from headrace.model.subscribers import Subscriber, cut_not_valid, upper_bound
from headrace.model.truncation import RunningTruncation, Truncation, very_beginning
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Check, MetadataStore, Write, WriteConflictError

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
            found = self._streams.get(scope, stream).stream
            return unsubscribe_writes(found, self._records.find(found, subscriber))

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

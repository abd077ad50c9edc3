"""Lists the scales of a stream between two times, from the epochs of its history."""

from __future__ import annotations

from headrace.api.streams import ScalingEvent, ScalingEvents
from headrace.controller.services.paging import PageRoom, check_page_limit
from headrace.metadata.history_records import history_sort, history_time, read_history
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import MetadataStore

TIME_MS_MAX = (1 << 63) - 1

SEGMENT_BYTES = 128
"""An upper bound for one segment of an event as JSON: an id, two key range bounds and the field names."""


class ScalingEventService:
    """Called by the scaling event route of the API; safe for any number of threads."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._records = StreamRecords(store)
        self._history = self._records.history

    def scaling_events(self, scope: str, stream: str, from_ms: int, to_ms: int, limit: int) -> ScalingEvents:
        """Scales from `from_ms` up to and including `to_ms`, in milliseconds since 1970, from at most `limit` epochs.

        Epochs that a commit of transactions has created are omitted, because they do not change the key ranges.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: the times are negative or in the wrong order, or the limit outside 1..PAGE_ITEMS_MAX.
        """
        if not 0 <= from_ms <= to_ms <= TIME_MS_MAX:
            raise InvalidRequestError(f"{from_ms} to {to_ms} is not a range of times in milliseconds since 1970")
        check_page_limit(limit)
        found = self._records.get(scope, stream).stream
        page = self._store.query(
            stream_partition(scope, stream),
            first=history_sort(from_ms),
            last=history_sort(min(to_ms, found.epoch.creation_time_ms)),
            limit=limit,
        )
        numbers = [read_history(record) for record in page.records]
        events: list[ScalingEvent] = []
        room = PageRoom()
        for epoch in self._history.epochs(found, [number for number in numbers if 0 < number <= found.epoch.number]):
            if room.is_full:
                return ScalingEvents(tuple(events), epoch.creation_time_ms)
            if epoch.duplicate_of is None:
                events.append(ScalingEvent.of(epoch))
                room.take(SEGMENT_BYTES * (len(epoch.replaced) + len(epoch.created)))
        following = None if page.next_after is None else history_time(page.next_after) + 1
        return ScalingEvents(tuple(events), following)

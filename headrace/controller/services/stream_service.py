"""Streams: create, get, list, update, truncate, scale, freeze, seal, delete.

An operation that needs calls of segment stores is accepted here and executed by a workflow: one transaction writes the
state change and the intent, then the message is sent. If sending fails, the operation is accepted all the same, because
the sweeper sends the messages of old intents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from headrace.api.listings import Listing
from headrace.api.streams import (
    EpochHistory,
    ScaleProgress,
    ScaleStatus,
    ScalingEvent,
    ScalingEvents,
    StreamDeletion,
    StreamSummary,
    StreamUpdate,
    StreamView,
)
from headrace.controller.acceptance import Acceptance
from headrace.controller.services.paging import PageRoom, check_page_limit, names_with_prefix
from headrace.metadata.format_gate import check_new_name
from headrace.metadata.history_records import history_sort, history_time, read_history
from headrace.metadata.optimistic_retry import ConflictBackoff
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.scope import (
    listed_tags,
    listing_key,
    listing_partition,
    no_such_scope,
    scope_exists,
    scope_guard_key,
)
from headrace.metadata.stream_indexes import tag_partition
from headrace.metadata.stream_records import StreamRecords
from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.log_classes import LogClass, check_has_containers
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.requests import RequestKind
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import StreamConfiguration, check_tag
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Record
from headrace.ports.request_queue import RequestQueue

_RECORDS_PER_READ = 100


class StreamService:
    """Called by the stream routes of the API; safe for any number of threads."""

    def __init__(
        self,
        store: MetadataStore,
        queue: RequestQueue,
        clock: Clock,
        backoff: ConflictBackoff | None = None,
        s3_containers: int = 0,
    ) -> None:
        self._s3_containers = s3_containers
        self._store = store
        self.acceptance = Acceptance(store, queue, clock, backoff)
        self._records = self.acceptance.streams

    def create_stream(self, scope: str, stream: str, configuration: StreamConfiguration) -> StreamView:
        """Accept a new stream; it is CREATING until its segments exist.

        Raises:
            InvalidRequestError: code "invalid_name".
            NotFoundError: there is no such scope.
            AlreadyExistsError: the stream exists, in any state.
            IllegalStateError: code "no_s3_containers": the deployment has no containers for the class S3.
        """
        check_scope_name(scope)
        check_stream_name(stream)
        check_new_name(self._store, stream)
        check_has_containers(configuration.log_class, self._s3_containers)
        from headrace.controller.operations import create_stream

        return create_stream.accept(self.acceptance, scope, stream, configuration)

    def get_stream(self, scope: str, stream: str) -> StreamView:
        """The stream's state and configuration; raises NotFoundError if there is no such stream."""
        return StreamView.of(self._records.get(scope, stream).stream)

    def is_deleting(self, scope: str, stream: str) -> bool:
        """Whether its deletion is running; raises NotFoundError if there is no such stream."""
        return self._records.get(scope, stream).stream.is_deleting

    def list_streams(
        self, scope: str, limit: int, after: str | None = None, tag: str | None = None, prefix: str = ""
    ) -> Listing[StreamSummary]:
        """Streams of a scope in the order of their names, after `after`; optionally only those with a tag or a prefix.

        A page may have fewer than `limit` streams, or none, although more follow.

        Raises:
            NotFoundError: there is no such scope.
            InvalidRequestError: a limit outside 1..PAGE_ITEMS_MAX, or an invalid tag or prefix.
        """
        first, last = names_with_prefix(prefix, after)
        partition = listing_partition(scope) if tag is None else tag_partition(scope, check_tag(tag))
        page = self._store.query(
            partition, first=first, last=last, limit=check_page_limit(limit), bytes_max=PAGE_BYTES_MAX
        )
        # Only an empty page needs the read that tells a missing scope from an empty one.
        if not page.records and not scope_exists(self._store.get(scope_guard_key(scope))):
            raise no_such_scope(scope)
        entries, next_after = page.records, page.next_after
        if tag is not None:
            entries, left_off_after = self._entries(scope, [record.key.sort for record in page.records])
            next_after = left_off_after or next_after
        summaries = (StreamSummary(scope, record.key.sort, listed_tags(record)) for record in entries)
        # The index of a tag holds streams that are about to get the tag, and some that have just lost it.
        return Listing(tuple(each for each in summaries if tag is None or tag in each.tags), next_after)

    def update_stream(
        self,
        scope: str,
        stream: str,
        configuration: StreamConfiguration,
        expected_version: int | None = None,
        log_class: LogClass | None = None,
    ) -> StreamUpdate:
        """Accept a new configuration for a stream; a repeat is accepted while the update runs.

        With `expected_version` the update is accepted only if the present configuration has this version. A client that
        did not receive the answer may repeat the request: it gets the same answer until another update follows.

        A stream keeps its class: that of `configuration` is ignored, and `log_class` must be the present one, if given.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
            FrozenError: the stream is frozen.
            ConflictError: another operation runs.
            IllegalStateError: code "configuration_changed": the configuration has another version than the expected.
            InvalidRequestError: code "log_class_fixed": the stream has another class than `log_class`.
        """
        from headrace.controller.operations import update_stream

        return update_stream.accept(self.acceptance, scope, stream, configuration, expected_version, log_class)

    def truncate_stream(self, scope: str, stream: str, offsets: Mapping[int, int]) -> StreamView:
        """Accept the truncation of a stream at a cut (offset in bytes by segment id); at the head nothing changes.

        The lengths of active segments are not checked here: see `StreamCutService.check_reached`.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_stream_cut": it is not a cut of this stream.
            TruncatedError: a part of the cut is before the head.
            SealedError: the stream is sealed.
            FrozenError: the stream is frozen.
            ConflictError: another operation runs.
        """
        from headrace.controller.operations import truncate_stream

        return truncate_stream.accept(self.acceptance, scope, stream, offsets)

    def scale_stream(
        self, scope: str, stream: str, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
    ) -> ScaleProgress:
        """Accept a scale; a repeat of the request gets the same answer during the scale and after it.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_key_ranges" or "too_many_segments".
            IllegalStateError: code "segment_not_active"; or "too_few_segments" for the scaling policy.
            SealedError: the stream is sealed.
            FrozenError: the stream is frozen.
            ConflictError: another operation runs.
        """
        from headrace.controller.operations import scale_stream

        return scale_stream.accept(self.acceptance, scope, stream, sealed_segment_ids, new_ranges)

    def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleStatus:
        """The status of the scale that leads to `epoch`; INVALID if it was rolled back.

        Raises NotFoundError if there is no such stream.
        """
        current = self._records.get(scope, stream).stream
        if 0 <= epoch <= current.epoch.number:
            is_rolled_back = self._records.history.epoch(current, epoch).changes_nothing
            return ScaleStatus.INVALID if is_rolled_back else ScaleStatus.SUCCESS
        is_next = epoch == current.epoch.number + 1 and current.has_accepted(RequestKind.SCALE_STREAM)
        return ScaleStatus.IN_PROGRESS if is_next else ScaleStatus.INVALID

    def seal_stream(self, scope: str, stream: str) -> StreamView:
        """Accept the sealing of a stream; a repeat while it is being sealed changes nothing.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed already.
            ConflictError: another operation runs.
        """
        from headrace.controller.operations import seal_stream

        return seal_stream.accept(self.acceptance, scope, stream)

    def freeze_stream(self, scope: str, stream: str) -> StreamView:
        """Accept a freeze, after which the stream refuses events; on a frozen stream nothing changes.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
            ConflictError: another operation runs.
        """
        from headrace.controller.operations import freeze_stream

        return freeze_stream.accept(self.acceptance, scope, stream)

    def unfreeze_stream(self, scope: str, stream: str) -> StreamView:
        """Accept the end of a freeze; on a stream that is not frozen nothing changes.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
            ConflictError: another operation runs, for example the freeze.
        """
        from headrace.controller.operations import freeze_stream

        return freeze_stream.accept_unfreeze(self.acceptance, scope, stream)

    def delete_stream(self, scope: str, stream: str) -> StreamDeletion:
        """Accept the deletion of a sealed stream; a repeat during the deletion changes nothing.

        Raises:
            NotFoundError: there is no such stream.
            IllegalStateError: code "stream_not_sealed".
        """
        from headrace.controller.operations import delete_stream

        return delete_stream.accept(self.acceptance, scope, stream)

    def _entries(self, scope: str, names: list[str]) -> tuple[list[Record], str | None]:
        """The list entries of these streams, without those that were deleted meanwhile.

        If they are too large for one page, it ends early, and the second value is the name of its last stream.
        """
        entries: list[Record] = []
        room = PageRoom()
        for start in range(0, len(names), _RECORDS_PER_READ):
            batch = [listing_key(scope, name) for name in names[start : start + _RECORDS_PER_READ]]
            for record in self._store.get_many(batch):
                if room.is_full:
                    return entries, entries[-1].key.sort
                if record is not None:
                    room.take(len(json.dumps(record.body)))
                    entries.append(record)
        return entries, None


# Lists the scales of a stream between two times, and its epochs, from its history.

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
        current = self._records.get(scope, stream).stream
        page = self._store.query(
            stream_partition(scope, stream),
            first=history_sort(from_ms),
            last=history_sort(min(to_ms, current.epoch.creation_time_ms)),
            limit=limit,
        )
        numbers = [read_history(record) for record in page.records]
        events: list[ScalingEvent] = []
        room = PageRoom()
        for epoch in self._history.epochs(
            current, [number for number in numbers if 0 < number <= current.epoch.number]
        ):
            if room.is_full:
                return ScalingEvents(tuple(events), epoch.creation_time_ms)
            if epoch.duplicate_of is None:
                events.append(ScalingEvent.of(epoch))
                room.take(SEGMENT_BYTES * (len(epoch.replaced) + len(epoch.created)))
        following = None if page.next_after is None else history_time(page.next_after) + 1
        return ScalingEvents(tuple(events), following)

    def epoch_history(self, scope: str, stream: str, before: int, limit: int) -> EpochHistory:
        """The epochs before the number `before`, the newest first, at most `limit`; all that change segments' ids.

        Raises:
            NotFoundError: there is no such stream, or it is being deleted.
            InvalidRequestError: `before` is not positive, or the limit outside 1..PAGE_ITEMS_MAX.
        """
        if before < 1:
            raise InvalidRequestError(f"there is no epoch before {before}: expected a number from 1 on")
        check_page_limit(limit)
        current = self._records.get(scope, stream).stream
        newest = min(before - 1, current.epoch.number)
        epochs: list[Epoch] = []
        room = PageRoom()
        for epoch in self._history.epochs(current, range(newest, max(newest - limit, -1), -1)):
            epochs.append(epoch)
            room.take(SEGMENT_BYTES * (len(epoch.replaced) + len(epoch.created)))
            if room.is_full:
                break
        replaced = [segment.segment_id for epoch in epochs for segment in epoch.replaced]
        sealed = self._history.sealed_segments(current, replaced)
        return EpochHistory.of(epochs, {identifier: end.length for identifier, end in sealed.items()})

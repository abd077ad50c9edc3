"""Streams: create, get, list, update, truncate, scale, seal, delete.

An operation that needs work on segment stores is accepted here and done by a workflow: one transaction writes the state
change and the intent, then the message is sent. If sending fails the operation is accepted all the same, since the
sweeper sends what the intent says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from headrace.api.pages import Listing
from headrace.api.streams import ScaleProgress, ScaleStatus, StreamSummary, StreamUpdate, StreamView
from headrace.codec.records.listing_record import tags_of_body
from headrace.codec.records.stream_record import next_number_of_tombstone
from headrace.controller.services.acceptance import send_or_leave
from headrace.controller.services.paging import PageRoom, check_page_limit, names_with_prefix
from headrace.controller.services.scopes import keep_scope, no_such_scope, scope_exists
from headrace.metadata import keys, transaction_keys
from headrace.metadata.history_records import create_epoch
from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.stream_indexes import writes_of_creation
from headrace.metadata.stream_records import (
    StoredStream,
    StreamRecords,
    create_configuration_update,
    create_current,
    create_intent,
    create_running_truncation,
    create_transition,
    is_stream,
)
from headrace.model.configuration_updates import ConfigurationUpdate, check_configuration_version
from headrace.model.epochs import Epoch, is_same_scale, scaled_epoch
from headrace.model.errors import AlreadyExistsError, ConflictError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.requests import RequestKind
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import StreamConfiguration, check_tag
from headrace.model.stream_cuts import StreamCut
from headrace.model.stream_state import StreamState
from headrace.model.streams import (
    Stream,
    new_stream,
    start_deleting,
    started,
)
from headrace.model.truncation import is_very_beginning, running_truncation
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Check, MetadataStore, Record, Write, WriteConflictError
from headrace.ports.request_queue import RequestQueue

_RECORDS_PER_READ = 100


class StreamService:
    """What the API's stream routes call; safe for any number of threads."""

    def __init__(
        self, store: MetadataStore, queue: RequestQueue, clock: Clock, backoff: ConflictBackoff | None = None
    ) -> None:
        self._store = store
        self._records = StreamRecords(store)
        self._cuts = PlacedCuts(self._records.history)
        self._queue = queue
        self._clock = clock
        self._backoff = backoff

    def create_stream(self, scope: str, stream: str, configuration: StreamConfiguration) -> StreamView:
        """Accept a new stream; it is CREATING until its segments exist.

        Raises:
            InvalidRequestError: code "invalid_name".
            NotFoundError: there is no such scope.
            AlreadyExistsError: the stream exists, in any state.
        """
        check_scope_name(scope)
        check_stream_name(stream)
        return repeat_on_conflict(lambda: self._try_to_create(scope, stream, configuration), backoff=self._backoff)

    def get_stream(self, scope: str, stream: str) -> StreamView:
        """Raises NotFoundError if there is no such stream."""
        return StreamView.of(self._records.get(scope, stream).stream)

    def list_streams(
        self, scope: str, limit: int, after: str | None = None, tag: str | None = None, prefix: str = ""
    ) -> Listing[StreamSummary]:
        """Streams of a scope by name, those after `after`; with a tag or a prefix, only those that have it.

        A page may be short of `limit`, or empty, though more follow.

        Raises:
            NotFoundError: there is no such scope.
            InvalidRequestError: a limit outside 1..PAGE_ITEMS_MAX, or what cannot be a tag or begin a name.
        """
        first, last = names_with_prefix(prefix, after)
        partition = keys.listing_partition(scope) if tag is None else keys.tag_partition(scope, check_tag(tag))
        page = self._store.query(
            partition, first=first, last=last, limit=check_page_limit(limit), bytes_max=PAGE_BYTES_MAX
        )
        # A scope that is not there is told apart from an empty one only when that matters: one read less for the rest.
        if not page.records and not scope_exists(self._store.get(keys.scope_guard_key(scope))):
            raise no_such_scope(scope)
        entries, next_after = page.records, page.next_after
        if tag is not None:
            entries, left_off_after = self._entries(scope, [record.key.sort for record in page.records])
            next_after = left_off_after or next_after
        found = (StreamSummary(scope, record.key.sort, tags_of_body(record.body)) for record in entries)
        # The index of a tag holds streams that are about to get the tag, and some that have just lost it.
        return Listing(tuple(one for one in found if tag is None or tag in one.tags), next_after)

    def update_stream(
        self, scope: str, stream: str, configuration: StreamConfiguration, expected_version: int | None = None
    ) -> StreamUpdate:
        """Accept a configuration in the place of the present one; the same again is accepted while the update runs.

        With `expected_version` only if the configuration in force has this version. The same request again, after its
        answer was lost, is answered as before for as long as no other update follows.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
            ConflictError: another operation runs.
            IllegalStateError: code "configuration_changed": it has another version than the expected one.
        """
        return repeat_on_conflict(
            lambda: self._try_to_update(scope, stream, configuration, expected_version), backoff=self._backoff
        )

    def truncate_stream(
        self, scope: str, stream: str, offsets: Mapping[int, int], planned_on: Check | None = None
    ) -> StreamView:
        """Accept that everything before a cut (offset in bytes by segment id) goes; at the head this changes nothing.

        How far active segments are is not asked here: see `SegmentService.check_reached`. `planned_on` is a record that
        must be as it was when the truncation was decided upon.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_stream_cut": it is not a cut of this stream.
            TruncatedError: a part of the cut is before the head.
            SealedError: the stream is sealed.
            ConflictError: another operation runs, or the record `planned_on` has changed.
        """
        cut = StreamCut.of(scope, stream, offsets)
        conditions = [] if planned_on is None else [planned_on]
        return repeat_on_conflict(lambda: self._try_to_truncate(cut, conditions), backoff=self._backoff)

    def scale_stream(
        self, scope: str, stream: str, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
    ) -> ScaleProgress:
        """Accept a scale; the very same request gets the same answer while the scale runs and when it is done.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_key_ranges" or "too_many_segments".
            IllegalStateError: code "segment_not_active".
            SealedError: the stream is sealed.
            ConflictError: another operation runs.
        """
        return repeat_on_conflict(
            lambda: self._try_to_scale(scope, stream, sealed_segment_ids, new_ranges), backoff=self._backoff
        )

    def scale_unchanged(
        self, stored: StoredStream, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
    ) -> ScaleProgress:
        """Accept a scale that was decided on looking at `stored`, if the stream is still what it was then.

        Raises:
            WriteConflictError: it is not; look again.
            The others as `scale_stream`.
        """
        scaling = started(stored.stream, stored.version, RequestKind.SCALE_STREAM)
        self._check_commit_does_not_roll(stored)
        epoch = scaled_epoch(scaling.epoch, sealed_segment_ids, new_ranges, self._clock.now_ms())
        self._accept_change(stored, scaling, create_transition(scaling, epoch))
        return ScaleProgress.of(epoch, ScaleStatus.IN_PROGRESS)

    def scale_status(self, scope: str, stream: str, epoch: int) -> ScaleStatus:
        """Whether the scale that leads to `epoch` is done; INVALID if it was rolled back.

        Raises NotFoundError if there is no such stream.
        """
        found = self._records.get(scope, stream).stream
        if 0 <= epoch <= found.epoch.number:
            is_rolled_back = self._records.history.epoch(found, epoch).changes_nothing
            return ScaleStatus.INVALID if is_rolled_back else ScaleStatus.SUCCESS
        is_next = epoch == found.epoch.number + 1 and found.has_accepted(RequestKind.SCALE_STREAM)
        return ScaleStatus.IN_PROGRESS if is_next else ScaleStatus.INVALID

    def seal_stream(self, scope: str, stream: str) -> StreamView:
        """Accept that the stream is to take no more events; repeated while that is going on, it changes nothing.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed already.
            ConflictError: another operation runs.
        """
        return repeat_on_conflict(lambda: self._try_to_seal(scope, stream), backoff=self._backoff)

    def delete_stream(self, scope: str, stream: str) -> StreamView:
        """Accept that a sealed stream is to disappear; repeated while that is going on, it changes nothing.

        Raises:
            NotFoundError: there is no such stream.
            IllegalStateError: code "stream_not_sealed".
        """
        return repeat_on_conflict(lambda: self._try_to_delete(scope, stream), backoff=self._backoff)

    def _try_to_create(self, scope: str, name: str, configuration: StreamConfiguration) -> StreamView:
        guard, door, current = self._store.get_many(
            [keys.scope_guard_key(scope), keys.scope_door_key(scope, name), keys.current_key(scope, name)]
        )
        if guard is None or not scope_exists(guard):
            raise no_such_scope(scope)
        if is_stream(current):
            raise AlreadyExistsError(f"stream {scope}/{name} exists", details={"scope": scope, "stream": name})
        first_number = next_number_of_tombstone(current.body) if current else 0
        stream = new_stream(scope, name, configuration, first_number, self._clock.now_ms())
        self._accept(
            stream,
            *create_current(stream, tombstone=current),
            *create_epoch(stream, stream.epoch),
            *writes_of_creation(stream),
            *keep_scope(scope, name, guard, door),
        )
        return StreamView.of(stream)

    def _try_to_update(
        self, scope: str, name: str, configuration: StreamConfiguration, expected_version: int | None
    ) -> StreamUpdate:
        stored = self._records.get(scope, name)
        if stored.stream.has_accepted(RequestKind.UPDATE_STREAM):
            running = self._records.configuration_update(stored.stream)
            if running is None:
                raise ConflictError(f"the update of {stored.stream.scoped_name} has just ended: repeat the request")
            if running.after == configuration and expected_version in (None, running.version - 1):
                return StreamUpdate(stored.stream.shown_state, running.version)
        version = stored.stream.configuration_version
        if expected_version == version - 1 and stored.stream.configuration == configuration:
            return StreamUpdate(stored.stream.shown_state, version)  # the answer to the first request was lost
        check_configuration_version(stored.stream.scoped_name, version, expected_version)
        updating = started(stored.stream, stored.version, RequestKind.UPDATE_STREAM)
        update = ConfigurationUpdate(updating.configuration, configuration, updating.configuration_version + 1)
        self._accept_change(stored, updating, create_configuration_update(updating, update))
        return StreamUpdate(updating.shown_state, update.version)

    def _try_to_truncate(self, cut: StreamCut, conditions: Sequence[Check]) -> StreamView:
        stored, truncation = self._records.get_with_truncation(cut.scope, cut.stream)
        stream = stored.stream
        if stream.has_accepted(RequestKind.TRUNCATE_STREAM):
            found = self._records.running_truncation(stream)
            if found is None:
                raise ConflictError(f"the truncation of {stream.scoped_name} has just ended: repeat the request")
            if found[0].target.cut == cut:
                return StreamView.of(stream)
        truncating = started(stream, stored.version, RequestKind.TRUNCATE_STREAM)
        if truncation is not None and truncation.cut == cut:
            return StreamView.of(stream)
        placed = self._cuts.check(stream, cut)
        self._cuts.check_left(stream, cut, truncation)
        if truncation is None and is_very_beginning(cut):
            return StreamView.of(stream)
        self._check_commit_does_not_roll(stored)
        running = running_truncation(placed, self._cuts.first_epoch(stream, cut), truncation)
        self._accept_change(stored, truncating, create_running_truncation(truncating, running), *conditions)
        return StreamView.of(truncating)

    def _try_to_scale(
        self, scope: str, name: str, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
    ) -> ScaleProgress:
        stored = self._records.get(scope, name)
        if stored.stream.has_accepted(RequestKind.SCALE_STREAM):
            planned = self._records.transition(stored.stream)
            if planned is None:
                raise ConflictError(f"the scale of {stored.stream.scoped_name} has just ended: repeat the request")
            if is_same_scale(planned, sealed_segment_ids, new_ranges):
                return ScaleProgress.of(planned, ScaleStatus.IN_PROGRESS)
        done = self._done_scale(stored.stream, sealed_segment_ids, new_ranges)
        if done is not None:
            return ScaleProgress.of(done, ScaleStatus.SUCCESS)
        return self.scale_unchanged(stored, sealed_segment_ids, new_ranges)

    def _done_scale(
        self, stream: Stream, sealed_segment_ids: Sequence[int], new_ranges: Sequence[KeyRange]
    ) -> Epoch | None:
        """The epoch that this very scale has led to; it is looked for only if the segments are not active any more."""
        ended = next((one for one in sealed_segment_ids if one not in stream.epoch.by_id), None)
        if ended is None:
            return None
        if is_same_scale(stream.epoch, sealed_segment_ids, new_ranges):
            return stream.epoch
        sealed = self._records.history.sealed_segments(stream, [ended]).get(ended)
        if sealed is None or sealed.replaced_in is None or sealed.replaced_in > stream.epoch.number:
            return None
        epoch = self._records.history.epoch(stream, sealed.replaced_in)
        return epoch if is_same_scale(epoch, sealed_segment_ids, new_ranges) else None

    def _check_commit_does_not_roll(self, stored: StoredStream) -> None:
        """What is planned on the active segments cannot wait for a batch of commits that replaces them.

        Raises:
            ConflictError: such a batch runs; repeat when it is done.
        """
        from headrace.codec.records.commit_run_record import commit_run_of_body

        stream = stored.stream
        if stream.state is not StreamState.COMMITTING_TXN:
            return
        record = self._store.get(transaction_keys.commit_run_key(stream.scope, stream.name))
        if record is None:
            raise WriteConflictError(f"a commit of {stream.scoped_name} has just ended", {})
        if commit_run_of_body(record.body).rolls:
            raise ConflictError(f"the segments of {stream.scoped_name} are just being replaced: repeat soon")

    def _try_to_seal(self, scope: str, name: str) -> StreamView:
        stored = self._records.get(scope, name)
        if stored.stream.has_accepted(RequestKind.SEAL_STREAM):
            return StreamView.of(stored.stream)
        sealing = started(stored.stream, stored.version, RequestKind.SEAL_STREAM)
        self._accept_change(stored, sealing)
        return StreamView.of(sealing)

    def _try_to_delete(self, scope: str, name: str) -> StreamView:
        stored = self._records.get(scope, name)
        if stored.stream.is_deleting:
            return StreamView.of(stored.stream)
        deleting = start_deleting(stored.stream, stored.version)
        self._accept_change(stored, deleting)
        return StreamView.of(deleting)

    def _accept(self, stream: Stream, *writes: Write) -> None:
        write, intent = create_intent(stream, self._clock.now_ms())
        self._store.write(*writes, write)
        send_or_leave(self._queue, intent)

    def _accept_change(self, stored: StoredStream, after: Stream, *writes: Write) -> None:
        write, intent = create_intent(after, self._clock.now_ms())
        self._records.replace(stored, after, *writes, write)
        send_or_leave(self._queue, intent)

    def _entries(self, scope: str, names: list[str]) -> tuple[list[Record], str | None]:
        """The list entries of these streams; one that has gone since is left out.

        With the name after which they were left off, if they are too much for a page.
        """
        entries: list[Record] = []
        room = PageRoom()
        for start in range(0, len(names), _RECORDS_PER_READ):
            batch = [keys.listing_key(scope, name) for name in names[start : start + _RECORDS_PER_READ]]
            for record in self._store.get_many(batch):
                if room.is_full:
                    return entries, entries[-1].key.sort
                if record is not None:
                    room.take(len(json.dumps(record.body)))
                    entries.append(record)
        return entries, None

"""Reader groups: create, get, list, update, reset, delete.

Each change is accepted here and done by a workflow, as with streams: one transaction writes the record and the intent,
then the message is sent. What readers share while they read is in the group's own stream and no business of ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.pages import Listing
from headrace.codec.records.intent_record import Intent
from headrace.controller.services.acceptance import send_or_leave
from headrace.controller.services.paging import check_page_limit, first_after
from headrace.controller.services.scopes import keep_scope, no_such_scope, scope_exists
from headrace.metadata import keys
from headrace.metadata.optimistic_retry import repeat_on_conflict
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.reader_group_records import ReaderGroupRecords, StoredGroup, stored_group
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import ConflictError, CorruptError, NotFoundError
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.names import check_reader_group_name, check_scope_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    check_group_id,
    check_identity,
    is_same_update,
    new_reader_group,
    start_deleting,
    start_update,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Key, MetadataStore, Record
from headrace.ports.request_queue import RequestQueue


class ReaderGroupService:
    """What the API's reader group routes call; safe for any number of threads."""

    def __init__(self, store: MetadataStore, queue: RequestQueue, clock: Clock) -> None:
        self._store = store
        self._records = ReaderGroupRecords(store)
        self._streams = StreamRecords(store)
        self._cuts = PlacedCuts(self._streams.history)
        self._queue = queue
        self._clock = clock

    def create_reader_group(
        self, scope: str, group: str, group_id: str, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        """Accept a new group under the id that the caller chose; a group that exists is answered as it is stored.

        So a repeat is harmless, and a caller tells from the id whether the group is the one it asked for.

        Raises:
            InvalidRequestError: code "invalid_name" or "invalid_stream_cut"; or the id is not the text of a UUID.
            NotFoundError: there is no such scope; or code "stream_not_found".
            ConflictError: a group of this name is being deleted; repeat soon.
        """
        check_scope_name(scope)
        check_reader_group_name(group)
        identifier = check_group_id(group_id)
        return repeat_on_conflict(lambda: self._try_to_create(scope, group, identifier, configuration))

    def get_reader_group(self, scope: str, group: str) -> ReaderGroup:
        """Raises NotFoundError if there is no such group."""
        return self._records.get(scope, group).group

    def list_reader_groups(self, scope: str, limit: int, after: str | None = None) -> Listing[str]:
        """Names of the scope's groups in order, those after `after`.

        Raises:
            NotFoundError: there is no such scope.
            InvalidRequestError: a limit outside 1..PAGE_ITEMS_MAX.
        """
        page = self._store.query(
            keys.reader_groups_partition(scope),
            first=first_after(after),
            limit=check_page_limit(limit),
            bytes_max=PAGE_BYTES_MAX,
        )
        if not page.records and not scope_exists(self._store.get(keys.scope_guard_key(scope))):
            raise no_such_scope(scope)
        return Listing(tuple(record.key.sort for record in page.records), page.next_after)

    def update_reader_group(
        self, scope: str, group: str, group_id: str, generation: int, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        """Accept another configuration for the group that the caller knows; the generation grows by one.

        The very same update gets the same answer again until the next one.

        Raises:
            NotFoundError: there is no such group; or code "stream_not_found".
            InvalidRequestError: code "invalid_stream_cut".
            IllegalStateError: code "reader_group_mismatch": the group has another id or generation by now.
            ConflictError: another operation runs.
        """
        identifier = check_group_id(group_id)
        return repeat_on_conflict(lambda: self._try_to_update(scope, group, identifier, generation, configuration))

    def reset_reader_group(self, scope: str, group: str, group_id: str, generation: int) -> ReaderGroup:
        """Accept that the readers begin again at the starting stream cuts; the generation grows by one.

        Raises as `update_reader_group` does; a repeat whose first answer was lost finds the generation grown.
        """
        identifier = check_group_id(group_id)
        return repeat_on_conflict(lambda: self._try_to_update(scope, group, identifier, generation, None))

    def delete_reader_group(self, scope: str, group: str, group_id: str) -> ReaderGroup:
        """Accept that the group is to disappear; repeated while that is going on, it changes nothing.

        Raises:
            NotFoundError: there is no such group.
            IllegalStateError: code "reader_group_mismatch": the group has another id.
            ConflictError: another operation runs.
        """
        identifier = check_group_id(group_id)
        return repeat_on_conflict(lambda: self._try_to_delete(scope, group, identifier))

    def _try_to_create(
        self, scope: str, name: str, group_id: str, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        wanted = [
            keys.scope_guard_key(scope),
            keys.scope_door_key(scope, name),
            keys.reader_group_key(scope, name),
        ]
        guard, door, current, *streams = self._store.get_many(wanted + _stream_keys(configuration.streams))
        if guard is None or not scope_exists(guard):
            raise no_such_scope(scope)
        stored = stored_group(current)
        if stored is not None:
            if stored.group.state is ReaderGroupState.DELETING:
                raise ConflictError(f"reader group {scope}/{name} is being deleted: repeat when it is gone")
            return stored.group
        self._check_streams(configuration.streams, streams)
        version = 0 if current is None else current.version + 1
        created = new_reader_group(scope, name, group_id, configuration, version)
        intent = self._intent(created)
        self._records.create(created, current, intent, *keep_scope(scope, name, guard, door))
        send_or_leave(self._queue, intent)
        return created

    def _try_to_update(
        self, scope: str, name: str, group_id: str, generation: int, configuration: ReaderGroupConfiguration | None
    ) -> ReaderGroup:
        """With None for a reset, which can't be told from an older update: so a repeat of one is refused."""
        stored = self._records.get(scope, name)
        if configuration is not None and is_same_update(stored.group, group_id, generation, configuration):
            return stored.group
        wanted = configuration or stored.group.configuration
        updated = start_update(stored.group, group_id, generation, wanted, stored.version)
        known = frozenset(stored.group.configuration.streams)
        changed = [one for one in wanted.streams if one not in known]
        if changed:
            self._check_streams(changed, self._store.get_many(_stream_keys(changed)))
        return self._accept(stored, updated)

    def _try_to_delete(self, scope: str, name: str, group_id: str) -> ReaderGroup:
        stored = self._records.get(scope, name)
        if stored.group.state is ReaderGroupState.DELETING:
            check_identity(stored.group, group_id)
            return stored.group
        return self._accept(stored, start_deleting(stored.group, group_id, stored.version))

    def _accept(self, stored: StoredGroup, after: ReaderGroup) -> ReaderGroup:
        intent = self._intent(after)
        self._records.start(stored, after, intent)
        send_or_leave(self._queue, intent)
        return after

    def _check_streams(self, streams: Sequence[GroupStream], records: Sequence[Record | None]) -> None:
        """Each stream is there, and its cuts are cuts of it.

        Raises:
            NotFoundError: code "stream_not_found".
            InvalidRequestError: code "invalid_stream_cut".
        """
        for wanted, record in zip(streams, records, strict=True):
            stored = self._streams.stored(record)
            if stored is None:
                raise NotFoundError(
                    f"there is no stream {wanted.scoped_name} for the reader group to read: create it first",
                    details={"scope": wanted.scope, "stream": wanted.stream},
                    code="stream_not_found",
                )
            for cut in (wanted.start, wanted.end):
                if cut is not None:
                    self._cuts.check(stored.stream, cut)

    def _intent(self, group: ReaderGroup) -> Intent:
        if group.pending is None:
            raise CorruptError(f"reader group {group.scoped_name} has no pending request to write an intent for")
        return Intent(group.scope, group.name, group.pending, self._clock.now_ms())


def _stream_keys(streams: Sequence[GroupStream]) -> list[Key]:
    return [keys.current_key(one.scope, one.stream) for one in streams]

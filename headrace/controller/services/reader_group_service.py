"""Reader groups: create, get, list, update, reset, delete.

Each change is accepted here and executed by a workflow, as with streams: one transaction writes the record and the
intent, then the message is sent. The readers of a group share their state in a stream of the group, which this service
does not read.
"""

from __future__ import annotations

from headrace.api.listings import Listing
from headrace.controller.acceptance import Acceptance, CheckWritten, CutRules
from headrace.controller.services.paging import check_page_limit, first_after
from headrace.metadata.format_gate import check_new_name
from headrace.metadata.reader_group import ReaderGroupRecords
from headrace.metadata.scope import no_such_scope, reader_groups_partition, scope_exists, scope_guard_key
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.model.names import check_reader_group_name, check_scope_name
from headrace.model.reader_groups import (
    ReaderGroup,
    ReaderGroupConfiguration,
    check_group_id,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.request_queue import RequestQueue


class ReaderGroupService:
    """Called by the reader group routes of the API; safe for any number of threads."""

    def __init__(
        self, store: MetadataStore, queue: RequestQueue, clock: Clock, check_written: CheckWritten | None = None
    ) -> None:
        """`check_written` refuses cuts beyond the tail of a stream; without it they are accepted."""
        self._store = store
        self._records = ReaderGroupRecords(store)
        self._check_written = check_written
        self._acceptance = Acceptance(store, queue, clock)

    def create_reader_group(
        self,
        scope: str,
        group: str,
        group_id: str,
        configuration: ReaderGroupConfiguration,
        *,
        at_checkpoint: bool = False,
    ) -> ReaderGroup:
        """Accept a new group with the id that the caller chose. If a group of the name exists, return it unchanged.

        So a repeat is harmless, and the id tells the caller whether the returned group is its own. With `at_checkpoint`
        a starting cut may be a checkpoint of Pravega's readers, which leaves out what they have finished.

        Raises:
            InvalidRequestError: code "invalid_name" or "invalid_stream_cut"; or the id is not a UUID.
            NotFoundError: there is no such scope; or code "stream_not_found".
            ConflictError: a group of this name is being deleted; repeat soon.
        """
        check_scope_name(scope)
        check_reader_group_name(group)
        check_new_name(self._store, group)
        identifier = check_group_id(group_id)
        from headrace.controller.operations import create_reader_group

        return create_reader_group.accept(
            self._acceptance,
            scope,
            group,
            identifier,
            configuration,
            CutRules(at_checkpoint, self._check_written),
        )

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
            reader_groups_partition(scope),
            first=first_after(after),
            limit=check_page_limit(limit),
            bytes_max=PAGE_BYTES_MAX,
        )
        if not page.records and not scope_exists(self._store.get(scope_guard_key(scope))):
            raise no_such_scope(scope)
        return Listing(tuple(record.key.sort for record in page.records), page.next_after)

    def update_reader_group(
        self,
        scope: str,
        group: str,
        group_id: str,
        generation: int,
        configuration: ReaderGroupConfiguration,
        *,
        at_checkpoint: bool = False,
    ) -> ReaderGroup:
        """Accept a new configuration for the group with this id and generation; the generation grows by one.

        A repeat of the same update gets the same answer until another update follows. `at_checkpoint` is that of
        `create_reader_group`.

        Raises:
            NotFoundError: there is no such group; or code "stream_not_found".
            InvalidRequestError: code "invalid_stream_cut".
            IllegalStateError: code "reader_group_mismatch": the group has another id or generation.
            ConflictError: another operation runs.
        """
        identifier = check_group_id(group_id)
        from headrace.controller.operations import update_reader_group

        return update_reader_group.accept(
            self._acceptance,
            scope,
            group,
            identifier,
            generation,
            configuration,
            CutRules(at_checkpoint, self._check_written),
        )

    def reset_reader_group(self, scope: str, group: str, group_id: str, generation: int) -> ReaderGroup:
        """Accept that the readers begin again at the starting stream cuts; the generation grows by one.

        Raises as `update_reader_group` does. A repeat fails with "reader_group_mismatch", because the generation has
        grown.
        """
        identifier = check_group_id(group_id)
        from headrace.controller.operations import update_reader_group

        return update_reader_group.accept(self._acceptance, scope, group, identifier, generation, None)

    def delete_reader_group(self, scope: str, group: str, group_id: str) -> ReaderGroup:
        """Accept the deletion of a group; a repeat during the deletion changes nothing.

        Raises:
            NotFoundError: there is no such group.
            IllegalStateError: code "reader_group_mismatch": the group has another id.
            ConflictError: another operation runs.
        """
        identifier = check_group_id(group_id)
        from headrace.controller.operations import delete_reader_group

        return delete_reader_group.accept(self._acceptance, scope, group, identifier)

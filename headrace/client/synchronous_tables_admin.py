"""`TablesAdmin` for programs without an event loop; thread-safe.

Generated from `tables_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace.api.key_value_tables import TableSegments, TableView
from headrace.api.segments import SegmentEndpoint
from headrace.client.loop_thread import LoopThread
from headrace.client.tables_admin import AsyncTablesAdmin
from headrace.model.key_value_tables import TableConfiguration


class TablesAdmin:
    """Creates, lists and deletes key-value tables. Creation and deletion are waited for unless `wait=False`."""

    def __init__(self, thread: LoopThread, core: AsyncTablesAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(
        self, scope: str, table: str, configuration: TableConfiguration, *, exist_ok: bool = False, wait: bool = True
    ) -> TableView:
        """A new table. With `exist_ok` one that exists is returned as it is, whatever its configuration.

        Raises:
            AlreadyExistsError: the table exists, and not `exist_ok`.
            NotFoundError: there is no such scope.
        """
        return self._thread.run(self._core.create(scope, table, configuration, exist_ok=exist_ok, wait=wait))

    def get(self, scope: str, table: str) -> TableView:
        """Raises NotFoundError if there is no such table."""
        return self._thread.run(self._core.get(scope, table))

    def list(self, scope: str) -> list[str]:
        """The names of the scope's tables, in order. Raises NotFoundError if there is no such scope."""
        return self._thread.run(self._core.list(scope))

    def segments(self, scope: str, table: str) -> TableSegments:
        """Raises NotFoundError if there is no such table, or its segments are not there yet."""
        return self._thread.run(self._core.segments(scope, table))

    def endpoint(self, scope: str, table: str, segment_id: int) -> SegmentEndpoint:
        """Where the segment's store listens. Waits a while for a container that nobody owns just now."""
        return self._thread.run(self._core.endpoint(scope, table, segment_id))

    def delete(self, scope: str, table: str, *, wait: bool = True) -> None:
        """Removes the table with all its entries. Raises NotFoundError if there is no such table."""
        self._thread.run(self._core.delete(scope, table, wait=wait))

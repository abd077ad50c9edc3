"""`TablesAdmin` for programs without an event loop; thread-safe.

Generated from `administration.tables_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace.api.key_value_tables import TableSegments, TableView
from headrace.api.segments import SegmentEndpoint
from headrace.client.administration.tables_admin import AsyncTablesAdmin
from headrace.client.loop_thread import LoopCaller
from headrace.model.key_value_tables import TableConfiguration


class TablesAdmin:
    """Creates, lists and deletes key-value tables. `create` and `delete` wait until it is done unless `wait=False`."""

    def __init__(self, thread: LoopCaller, core: AsyncTablesAdmin) -> None:
        self._thread = thread
        self._core = core

    def create(
        self, scope: str, table: str, configuration: TableConfiguration, *, exist_ok: bool = False, wait: bool = True
    ) -> TableView:
        """Creates a table. With `exist_ok` an existing table is returned unchanged, even if its configuration differs.

        Raises:
            AlreadyExistsError: the table exists, and `exist_ok` is false.
            NotFoundError: there is no such scope.
        """
        return self._thread.run(self._core.create(scope, table, configuration, exist_ok=exist_ok, wait=wait))

    def get(self, scope: str, table: str) -> TableView:
        """Returns a table. Raises NotFoundError if there is no such table."""
        return self._thread.run(self._core.get(scope, table))

    def list(self, scope: str) -> list[str]:
        """Returns the names of the scope's tables, sorted. Raises NotFoundError if there is no such scope."""
        return self._thread.run(self._core.list(scope))

    def segments(self, scope: str, table: str) -> TableSegments:
        """Returns the segments of a table. Raises NotFoundError if there is no such table, or it is being created."""
        return self._thread.run(self._core.segments(scope, table))

    def endpoint(self, scope: str, table: str, segment_id: int) -> SegmentEndpoint:
        """Returns the address of the segment's store. Retries for a while if no store owns the container now."""
        return self._thread.run(self._core.endpoint(scope, table, segment_id))

    def delete(self, scope: str, table: str, *, wait: bool = True) -> None:
        """Deletes the table with all its entries. Raises NotFoundError if there is no such table."""
        self._thread.run(self._core.delete(scope, table, wait=wait))

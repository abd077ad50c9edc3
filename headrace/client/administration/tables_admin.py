"""Key-value tables over the controller's HTTP API: `admin.tables`."""

from __future__ import annotations

from headrace.api.key_value_tables import CreateTableRequest, TableSegments, TableView
from headrace.api.segments import SegmentEndpoint
from headrace.client.administration.polling import items_of_pages, until
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.http_api import HttpApi, parsed
from headrace.client.trust import AsyncTrust
from headrace.model.arguments import checked_calls
from headrace.model.errors import AlreadyExistsError, NotFoundError
from headrace.model.key_value_tables import TableConfiguration
from headrace.model.names import check_scope_name, check_table_name


@checked_calls()
class AsyncTablesAdmin:
    """Creates, lists and deletes key-value tables. `create` and `delete` wait until it is done unless `wait=False`."""

    def __init__(self, api: HttpApi, delegation_tokens: AsyncDelegationTokens, trust: AsyncTrust) -> None:
        self.delegation_tokens = delegation_tokens
        self.trust = trust
        self._api = api

    async def create(
        self,
        scope: str,
        table: str,
        configuration: TableConfiguration,
        *,
        exist_ok: bool = False,
        wait: bool = True,
    ) -> TableView:
        """Creates a table. With `exist_ok` an existing table is returned unchanged, even if its configuration differs.

        Raises:
            AlreadyExistsError: the table exists, and `exist_ok` is false.
            NotFoundError: there is no such scope.
        """
        body = CreateTableRequest(**configuration.fields(), table=check_table_name(table)).to_json()
        try:
            view = parsed(
                TableView.from_json, await self._api.request("POST", _tables(scope), body=body, repeatable=exist_ok)
            )
        except AlreadyExistsError:
            if not exist_ok:
                raise
            view = await self.get(scope, table)
        if wait and view.state == "CREATING":
            what = f"creating key-value table {scope}/{table}"
            view = await until(what, lambda: self.get(scope, table), lambda present: present.state != "CREATING")
        return view

    async def get(self, scope: str, table: str) -> TableView:
        """Returns a table. Raises NotFoundError if there is no such table."""
        return parsed(TableView.from_json, await self._api.request("GET", _path(scope, table)))

    async def list(self, scope: str) -> list[str]:
        """Returns the names of the scope's tables, sorted. Raises NotFoundError if there is no such scope."""
        return [name async for name in items_of_pages(self._api, _tables(scope), "tables", str)]

    async def segments(self, scope: str, table: str) -> TableSegments:
        """Returns the segments of a table. Raises NotFoundError if there is no such table, or it is being created."""
        return parsed(TableSegments.from_json, await self._api.request("GET", f"{_path(scope, table)}/segments"))

    async def endpoint(self, scope: str, table: str, segment_id: int) -> SegmentEndpoint:
        """Returns the address of the segment's store. Retries for a while if no store owns the container now."""
        path = f"{_path(scope, table)}/segments/{segment_id}/endpoint"
        answer = await self._api.request("GET", path, query=self._api.network_query)
        return parsed(SegmentEndpoint.from_json, answer)

    async def delete(self, scope: str, table: str, *, wait: bool = True) -> None:
        """Deletes the table with all its entries. Raises NotFoundError if there is no such table."""
        await self._api.request("DELETE", _path(scope, table))
        if wait:
            await until(f"deleting key-value table {scope}/{table}", lambda: self._is_gone(scope, table), bool)

    async def _is_gone(self, scope: str, table: str) -> bool:
        """Whether the deletion is done. A new table of the same name, created since, is not in state DELETING."""
        try:
            return (await self.get(scope, table)).state != "DELETING"
        except NotFoundError:
            return True


def _tables(scope: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/key-value-tables"


def _path(scope: str, table: str) -> str:
    return f"{_tables(scope)}/{check_table_name(table)}"

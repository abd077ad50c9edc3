"""The rpcs on key-value tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.messages import continuation
from headrace.bridge.waiting import Waits
from headrace.controller.services.key_value_table_service import KeyValueTableService
from headrace.model.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.key_value_tables import KeyValueTable, TableConfiguration, TableState
from headrace.model.limits import PAGE_ITEMS_MAX
from headrace.model.names import check_known_name

if TYPE_CHECKING:
    from headrace.bridge.service import Rpc


class TableRpcs:
    """The rpcs that create or delete a table return when the operation is complete."""

    def __init__(self, tables: KeyValueTableService, waits: Waits) -> None:
        self._tables = tables
        self._waits = waits

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {
            "createKeyValueTable": self.create_table,
            "getCurrentSegmentsKeyValueTable": self.current_segments,
            "listKeyValueTablesInScope": self.list_tables,
            "getKeyValueTableConfiguration": self.table_configuration,
            "deleteKeyValueTable": self.delete_table,
        }

    async def create_table(self, request: pb.KeyValueTableConfig) -> pb.CreateKeyValueTableStatus:
        """Return when the table can be used, also if its creation had already started."""
        scope, table = request.scope, request.kvtName
        configuration = _configuration_of(request)
        what = f"creating key-value table {scope}/{table}"
        exists: AlreadyExistsError | None = None
        try:
            await self._waits.accepted(what, lambda: self._tables.create_table(scope, table, configuration))
        except AlreadyExistsError as error:
            exists = error
        try:
            await self._waits.until(what, lambda: self._tables.get_table(scope, table), _is_not_being_created)
        except NotFoundError as error:
            raise UnavailableError(f"{what}: another client has deleted it meanwhile: repeat") from error
        if exists is not None:
            raise exists
        return pb.CreateKeyValueTableStatus(status=pb.CreateKeyValueTableStatus.SUCCESS)

    def current_segments(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        scope, table = _known(request)
        stored = self._tables.segments_of_table(scope, table)
        return pb.SegmentRanges(
            segmentRanges=[messages.segment_range_message(scope, table, segment) for segment in stored.segments]
        )

    def list_tables(self, request: pb.KVTablesInScopeRequest) -> pb.KVTablesInScopeResponse:
        scope, asked_after = messages.known_scope(request.scope.scope), request.continuationToken.token
        page = self._tables.list_tables(scope, PAGE_ITEMS_MAX, asked_after or None)
        return pb.KVTablesInScopeResponse(
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in page.items],
            continuationToken=continuation(page, asked_after, str),
        )

    def table_configuration(self, request: pb.KeyValueTableInfo) -> pb.KeyValueTableConfigResponse:
        stored = self._tables.get_table(*_known(request))
        return pb.KeyValueTableConfigResponse(
            config=_configuration_message(stored), status=pb.KeyValueTableConfigResponse.SUCCESS
        )

    async def delete_table(self, request: pb.KeyValueTableInfo) -> pb.DeleteKVTableStatus:
        """Return when the table is deleted and its name is free."""
        scope, table = _known(request)
        what = f"deleting key-value table {scope}/{table}"
        await self._waits.accepted(what, lambda: self._tables.delete_table(scope, table))
        await self._waits.until_gone(what, lambda: self._tables.get_table(scope, table), _is_not_being_deleted)
        return pb.DeleteKVTableStatus(status=pb.DeleteKVTableStatus.SUCCESS)


def _is_not_being_created(table: KeyValueTable) -> bool:
    return table.state is not TableState.CREATING


def _is_not_being_deleted(table: KeyValueTable) -> bool:
    """Whether this is another table, which was created since the deletion."""
    return table.state is not TableState.DELETING


def _known(info: pb.KeyValueTableInfo) -> tuple[str, str]:
    """Raises NotFoundError for names that no scope or no table can have."""
    scope = messages.known_scope(info.scope)
    try:
        return scope, check_known_name("key-value table", info.kvtName)
    except InvalidRequestError as error:
        raise NotFoundError(f"there is no key-value table {scope}/{info.kvtName[:300]!r}") from error


def _configuration_of(config: pb.KeyValueTableConfig) -> TableConfiguration:
    return TableConfiguration(
        partition_count=config.partitionCount,
        primary_key_length=config.primaryKeyLength,
        secondary_key_length=config.secondaryKeyLength,
        rollover_size_bytes=max(0, config.rolloverSizeBytes),
    )


def _configuration_message(table: KeyValueTable) -> pb.KeyValueTableConfig:
    configuration = table.configuration
    return pb.KeyValueTableConfig(
        scope=table.scope,
        kvtName=table.name,
        partitionCount=configuration.partition_count,
        primaryKeyLength=configuration.primary_key_length,
        secondaryKeyLength=configuration.secondary_key_length,
        rolloverSizeBytes=configuration.rollover_size_bytes,
    )

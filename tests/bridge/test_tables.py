"""Key-value tables as Pravega's clients see them."""

from __future__ import annotations

import grpc
import pytest
from bridge_in_memory import Bridge

from headrace.bridge import controller_pb2 as pb
from headrace.model.key_value_tables import TableConfiguration


def _config(name: str = "k", scope: str = "s", **more: int) -> pb.KeyValueTableConfig:
    settings = {"partitionCount": 2, "primaryKeyLength": 4, "secondaryKeyLength": 2, "rolloverSizeBytes": 99} | more
    return pb.KeyValueTableConfig(scope=scope, kvtName=name, **settings)


def _info(name: str = "k", scope: str = "s") -> pb.KeyValueTableInfo:
    return pb.KeyValueTableInfo(scope=scope, kvtName=name)


def test_a_table_can_be_used_when_its_creation_is_answered(bridge: Bridge):
    assert bridge.call("createKeyValueTable", _config()).status == pb.CreateKeyValueTableStatus.SUCCESS
    reply = bridge.call("getKeyValueTableConfiguration", _info())
    assert (reply.status, reply.config) == (pb.KeyValueTableConfigResponse.SUCCESS, _config())
    ranges = bridge.call("getCurrentSegmentsKeyValueTable", _info()).segmentRanges
    assert [
        (segment_range.segmentId.segmentId, segment_range.minKey, segment_range.maxKey) for segment_range in ranges
    ] == [(0, 0.0, 0.5), (1, 0.5, 1.0)]
    assert (ranges[0].segmentId.streamInfo.scope, ranges[0].segmentId.streamInfo.stream) == ("s", "k")
    assert bridge.call("createKeyValueTable", _config()).status == pb.CreateKeyValueTableStatus.TABLE_EXISTS


def test_creation_waits_for_a_concurrent_one(bridge: Bridge):
    bridge.world.tables.create_table("s", "k", TableConfiguration(2, 4))
    assert bridge.call("createKeyValueTable", _config()).status == pb.CreateKeyValueTableStatus.TABLE_EXISTS
    assert len(bridge.call("getCurrentSegmentsKeyValueTable", _info()).segmentRanges) == 2


def test_a_table_is_gone_when_its_deletion_is_answered(bridge: Bridge):
    bridge.call("createKeyValueTable", _config())
    assert bridge.call("deleteKeyValueTable", _info()).status == pb.DeleteKVTableStatus.SUCCESS
    assert bridge.world.bare_segment_stores.names() == []
    assert bridge.call("deleteKeyValueTable", _info()).status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND
    reply = bridge.call("getKeyValueTableConfiguration", _info())
    assert reply.status == pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND
    assert bridge.refused("getCurrentSegmentsKeyValueTable", _info()) is grpc.StatusCode.NOT_FOUND


def test_the_tables_of_a_scope_end_with_an_empty_page(bridge: Bridge):
    for name in ("b", "a"):
        bridge.call("createKeyValueTable", _config(name))
    asked = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="s"))
    page = bridge.call("listKeyValueTablesInScope", asked)
    assert [(table.scope, table.kvtName) for table in page.kvtables] == [("s", "a"), ("s", "b")]
    asked.continuationToken.CopyFrom(page.continuationToken)
    assert not bridge.call("listKeyValueTablesInScope", asked).kvtables
    nowhere = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="none"))
    assert bridge.call("listKeyValueTablesInScope", nowhere).status == pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND


@pytest.mark.parametrize(
    ("config", "status"),
    [
        (_config(scope="none"), pb.CreateKeyValueTableStatus.SCOPE_NOT_FOUND),
        (_config("a/b"), pb.CreateKeyValueTableStatus.INVALID_TABLE_NAME),
        (_config("_k"), pb.CreateKeyValueTableStatus.INVALID_TABLE_NAME),
    ],
)
def test_what_creation_refuses(bridge: Bridge, config, status):
    before = bridge.world.everything()
    assert bridge.call("createKeyValueTable", config).status == status
    assert bridge.world.everything() == before


def test_bad_configurations_and_names(bridge: Bridge):
    assert bridge.refused("createKeyValueTable", _config(partitionCount=0)) is grpc.StatusCode.INVALID_ARGUMENT
    assert bridge.call("deleteKeyValueTable", _info("a/b")).status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND

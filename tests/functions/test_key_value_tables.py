"""Key-value tables through the handlers: a whole life over HTTP, its messages, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import tables
from headrace import topology
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import UnavailableError
from headrace.model.names import container_of_segment
from headrace.ports.metadata_store import Create, Key
from headrace.topology import CONTAINER_COUNT, TABLES_QUEUE

TABLES = "/v1/scopes/s/key-value-tables"
ASKED = {
    "tableName": "k",
    "partitionCount": 2,
    "primaryKeyLength": 4,
    "secondaryKeyLength": 2,
    "rolloverSizeBytes": 1 << 20,
}


@pytest.fixture
def scope(call: Call) -> None:
    assert call("POST", "/v1/scopes", {"scopeName": "s"}).status == 201


@pytest.mark.usefixtures("scope")
def test_create_get_and_delete_a_table(call: Call, world: FunctionWorld):
    created = call("POST", TABLES, ASKED)
    assert (created.status, created.body["state"]) == (201, "CREATING")
    assert call("GET", f"{TABLES}/k/segments").status == 404
    world.work()
    body = call("GET", f"{TABLES}/k").body
    assert body == ASKED | {"scopeName": "s", "state": "ACTIVE", "creationTime": body["creationTime"]}
    assert call("GET", f"{TABLES}/k/segments").body == {
        "segments": [
            {"segmentId": 0, "name": "s/k_kvtable/0.#epoch.0", "low": 0.0, "high": 0.5},
            {"segmentId": 1, "name": "s/k_kvtable/1.#epoch.0", "low": 0.5, "high": 1.0},
        ],
        "primaryKeyLength": 4,
        "secondaryKeyLength": 2,
    }
    assert call("GET", TABLES).body == {"tables": ["k"], "continuationToken": None}
    assert call("POST", TABLES, ASKED).code == "already_exists"
    assert call("DELETE", "/v1/scopes/s").code == "scope_not_empty"
    gone = call("DELETE", f"{TABLES}/k")
    assert (gone.status, gone.body) == (202, {"state": "DELETING"})
    world.work()
    assert call("GET", f"{TABLES}/k").status == 404
    assert call("DELETE", f"{TABLES}/k").status == 404
    assert call("GET", TABLES).body["tables"] == []


@pytest.mark.usefixtures("scope")
def test_tables_by_page(call: Call):
    for name in ("c", "a", "b"):
        assert call("POST", TABLES, ASKED | {"tableName": name}).status == 201
    first = call("GET", TABLES, limit="2").body
    assert first["tables"] == ["a", "b"]
    assert call("GET", TABLES, continuationToken=first["continuationToken"]).body["tables"] == ["c"]
    assert call("GET", TABLES, limit="0").status == 400
    assert call("GET", "/v1/scopes/none/key-value-tables").status == 404


@pytest.mark.usefixtures("scope")
def test_where_a_segment_is(call: Call, world: FunctionWorld, monkeypatch: pytest.MonkeyPatch):
    """No store is asked: the function may not read the keys of tokens, without which no store would answer it."""
    assert "token-keys:read" not in topology.function("key-value-tables").grants
    monkeypatch.setattr(wiring, "segment_stores", lambda: pytest.fail("a store would be asked"))
    assert call("GET", f"{TABLES}/k/segments/0/endpoint").status == 503
    container = container_of_segment("s/k_kvtable/0.#epoch.0", CONTAINER_COUNT)
    claim = claim_body(ContainerClaim("store-0", "store.test", 12345, "local"))
    world.store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim))
    body = call("GET", f"{TABLES}/k/segments/0/endpoint").body
    assert (body["host"], body["port"]) == ("store.test", 12345)


@pytest.mark.usefixtures("scope")
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"tableName": "a/b"}, "invalid_name"),
        ({"tableName": "_k"}, "invalid_name"),
        ({"tableName": "k" * 251}, "invalid_name"),
        ({"partitionCount": 0}, "invalid_request"),
        ({"partitionCount": 1001}, "invalid_request"),
        ({"partitionCount": True}, "invalid_request"),
        ({"primaryKeyLength": 0}, "invalid_request"),
        ({"primaryKeyLength": "4"}, "invalid_request"),
        ({"secondaryKeyLength": 8192}, "invalid_request"),
        ({"rolloverSizeBytes": 1 << 70}, "invalid_request"),
        ({"colour": "red"}, "invalid_request"),
    ],
)
def test_bad_input_changes_nothing(call: Call, world: FunctionWorld, wrong: dict[str, Any], code: str):
    before = world.contents()
    answer = call("POST", TABLES, ASKED | wrong)
    assert (answer.status, answer.code) == (400, code)
    assert world.contents() == before


def _deliver(world: FunctionWorld, context: FunctionContext, received: int) -> int:
    """How many messages are to come again."""
    (message,) = world.queue.receive()
    record = {
        "messageId": "m",
        "receiptHandle": "r",
        "body": json.dumps(message.body),
        "attributes": {"MessageGroupId": message.group, "ApproximateReceiveCount": str(received)},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{TABLES_QUEUE.name}",
    }
    return len(tables.handler({"Records": [record]}, context)["batchItemFailures"])


@pytest.mark.usefixtures("scope")
def test_processor_executes_queued_requests(call: Call, world: FunctionWorld, context: FunctionContext):
    call("POST", TABLES, ASKED)
    assert _deliver(world, context, 1) == 0
    assert call("GET", f"{TABLES}/k").body["state"] == "ACTIVE"


class DownStores(MemorySegmentStores):
    """No table is created any more."""

    def create_table_segment(self, *_: Any) -> None:
        raise UnavailableError("no segment store answers")


@pytest.mark.usefixtures("scope")
def test_dead_letter_of_a_table_keeps_the_request(
    call: Call, world: FunctionWorld, context: FunctionContext, monkeypatch: pytest.MonkeyPatch
):
    call("POST", TABLES, ASKED)
    wiring.forget_services()
    monkeypatch.setattr(wiring, "segment_stores", DownStores)
    monkeypatch.setattr(wiring, "sqs_client", lambda: None)
    assert _deliver(world, context, TABLES_QUEUE.max_receive_count) == 1
    (letter,) = call("GET", "/v1/dead-letters").body["letters"]
    assert (letter["queue"], letter["status"]) == (TABLES_QUEUE.name, "STUCK")
    assert call("GET", f"{TABLES}/k").body["state"] == "CREATING"

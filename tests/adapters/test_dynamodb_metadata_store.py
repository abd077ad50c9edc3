"""What DynamoDB adds to the contract: the price of each operation, and what happens when it does not answer well."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from request_counter import RequestCounter

from headrace.adapters.dynamodb.client import ATTEMPTS_MAX, RETRIES_END_AFTER_S, Retries, dynamodb_client
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.model.errors import CorruptError, UnavailableError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    METADATA_STORE_REFUSED,
    Check,
    Create,
    Delete,
    ItemRefusedError,
    Key,
    Record,
    Replace,
    WriteConflictError,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

READ_TIMEOUT = ReadTimeoutError(endpoint_url="http://dynamodb")
NO_CONNECTION = EndpointConnectionError(endpoint_url="http://dynamodb")


def refusal(code: str, status: int = 400, **more: Any) -> ClientError:
    response: dict[str, Any] = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return ClientError(response, "Any")  # type: ignore[arg-type]


THROTTLED = refusal("ThrottlingException")
SERVER_ERROR = refusal("InternalServerError", 500)
CLASH = refusal("TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": "TransactionConflict"}])


REFUSALS = [
    *("AccessDeniedException", "KMSAccessDeniedException", "KMSInvalidStateException", "ResourceNotFoundException"),
    *("ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException", "RequestTimeTooSkewed"),
    *("MissingAuthenticationTokenException", "SomethingNew"),
]


def calls_of_all_kinds() -> list[Callable[[DynamoMetadataStore], object]]:
    key, other = Key("a", "b"), Key("a", "c")
    return [
        lambda store: store.get(key),
        lambda store: store.get_many([key]),
        lambda store: store.query("a", limit=1),
        lambda store: store.write(Create(key, {})),
        lambda store: store.write(Create(key, {}), Create(other, {})),
    ]


class TroubledClient:
    """Passes calls on, but first answers with the troubles given: an error, and whether the call took effect."""

    def __init__(self, client: DynamoDBClient, *troubles: tuple[Exception, bool]) -> None:
        self._client = client
        self._troubles = list(troubles)
        self.calls = 0
        self.requests: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._client, name)

        def call(**request: Any) -> Any:
            self.calls += 1
            self.requests.append(copy.deepcopy(request))
            if not self._troubles:
                return operation(**request)
            error, takes_effect = self._troubles.pop(0)
            if takes_effect:
                operation(**request)
            raise error

        return call


class Pauses:
    """Stands in for time: sleeping moves the clock."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def retries(self) -> Retries:
        return Retries(sleep=self.slept.append, monotonic_s=lambda: sum(self.slept), jitter=lambda: 1.0)


class MakeTroubled(Protocol):
    """Makes a store whose client has these troubles: an error, and whether the call took effect."""

    def __call__(self, *troubles: tuple[Exception, bool]) -> tuple[DynamoMetadataStore, TroubledClient]: ...


@pytest.fixture
def troubled(dynamodb: DynamoDBClient, table_name: str) -> MakeTroubled:
    def make(*troubles: tuple[Exception, bool]) -> tuple[DynamoMetadataStore, TroubledClient]:
        client: Any = TroubledClient(dynamodb, *troubles)
        return DynamoMetadataStore(table_name, client, retries=Pauses().retries()), client

    return make


@pytest.fixture
def store(dynamodb: DynamoDBClient, table_name: str) -> DynamoMetadataStore:
    return DynamoMetadataStore(table_name, dynamodb)


def test_each_operation_is_one_request(store: DynamoMetadataStore, dynamodb: DynamoDBClient, partition: str):
    counter = RequestCounter(dynamodb)
    a, b = Key(partition, "a"), Key(partition, "b")
    operations: list[tuple[Callable[[], Any], str]] = [
        (lambda: store.write(Create(a, {})), "PutItem"),
        (lambda: store.write(Replace(a, {}, 0)), "PutItem"),
        (lambda: store.write(Check(a, 1)), "GetItem"),
        (lambda: store.write(Check(b, None), Replace(a, {}, 1)), "TransactWriteItems"),
        (lambda: store.get(a), "GetItem"),
        (lambda: store.get_many([a, b]), "BatchGetItem"),
        (lambda: store.query(partition, limit=10), "Query"),
        (lambda: store.query(partition, limit=1), "Query"),
        (lambda: store.write(Delete(a, 2)), "DeleteItem"),
    ]
    for operation, request in operations:
        with counter.counting() as calls:
            operation()
        assert calls == {request: 1}


def test_a_conflict_brings_the_record_without_another_read(
    store: DynamoMetadataStore, dynamodb: DynamoDBClient, partition: str
):
    key = Key(partition, "a")
    store.write(Create(key, {"n": 1}))
    counter = RequestCounter(dynamodb)
    with counter.counting() as calls, pytest.raises(WriteConflictError) as conflict:
        store.write(Create(key, {}), Check(Key(partition, "b"), ANY_VERSION))
    assert conflict.value.failed == {0: Record(key, 0, {"n": 1}), 1: None}
    assert calls == {"TransactWriteItems": 1}


def test_reads_are_strongly_consistent(dynamodb: DynamoDBClient, table_name: str, partition: str):
    asked: list[Any] = []
    client: Any = dynamodb_client()
    for operation in ("GetItem", "BatchGetItem", "Query"):
        client.meta.events.register(
            f"provide-client-params.dynamodb.{operation}", lambda params, **_: asked.append(params)
        )
    store = DynamoMetadataStore(table_name, client)
    key = Key(partition, "a")
    store.get(key)
    store.get_many([key])
    store.query(partition, limit=1)
    get, batch, query = asked
    assert (get["ConsistentRead"], query["ConsistentRead"]) == (True, True)
    assert batch["RequestItems"][table_name]["ConsistentRead"] is True


@pytest.mark.parametrize("trouble", [THROTTLED, CLASH, NO_CONNECTION, READ_TIMEOUT, SERVER_ERROR])
def test_what_had_no_effect_is_sent_again(troubled: MakeTroubled, partition: str, trouble: Exception):
    store, client = troubled(*[(trouble, False)] * 3)
    key = Key(partition, "a")
    store.write(Create(key, {"n": 1}), Check(Key(partition, "b"), None))
    assert client.calls == 4
    assert store.get(key) == Record(key, 0, {"n": 1})


@pytest.mark.parametrize("trouble", [READ_TIMEOUT, SERVER_ERROR])
def test_write_does_not_conflict_with_its_own_lost_attempt(troubled: MakeTroubled, partition: str, trouble: Exception):
    a, b = Key(partition, "a"), Key(partition, "b")
    store, client = troubled((trouble, True))
    store.write(Create(a, {"n": 1}))
    assert client.calls == 2
    store, _ = troubled((trouble, True))
    store.write(Replace(a, {"n": 2}, 0))
    store, _ = troubled((THROTTLED, False), (trouble, True))
    store.write(Replace(a, {"n": 3}, 1), Create(b, {}))
    assert store.get_many([a, b]) == [Record(a, 2, {"n": 3}), Record(b, 0, {})]


def test_outcome_is_unknown_if_another_client_changed_it(
    troubled: MakeTroubled, store: DynamoMetadataStore, partition: str
):
    key = Key(partition, "a")
    store.write(Create(key, {"n": 1}))
    uncertain, _ = troubled((READ_TIMEOUT, False))
    with pytest.raises(UnavailableError, match="outcome is unknown"):
        uncertain.write(Create(key, {"n": 1}))
    uncertain, _ = troubled((READ_TIMEOUT, True))
    with pytest.raises(UnavailableError, match="outcome is unknown"):
        uncertain.write(Delete(key, 0))
    assert store.get(key) is None


def test_a_clash_and_a_failed_condition_is_a_conflict_at_once(troubled: MakeTroubled, partition: str):
    item = {"partition": {"S": "p"}, "sort": {"S": "s"}, "version": {"N": "4"}, "body": {"S": "{}"}}
    reasons = [{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed", "Item": item}]
    store, client = troubled((refusal("TransactionCanceledException", CancellationReasons=reasons), False))
    with pytest.raises(WriteConflictError) as conflict:
        store.write(Create(Key(partition, "a"), {}), Create(Key(partition, "b"), {}))
    assert conflict.value.failed == {1: Record(Key("p", "s"), 4, {})}
    assert client.calls == 1


def test_each_conflict_is_told_at_its_own_write(store: DynamoMetadataStore, partition: str):
    """pynamodb sends checks first, then deletions, then puts, and DynamoDB answers in that order."""
    keys = [Key(partition, name) for name in "abcdef"]
    for key in keys[:-1]:
        store.write(Create(key, {"at": key.sort}))
    writes = [
        Replace(keys[0], {}, 7),
        Check(keys[1], ANY_VERSION),
        Create(keys[2], {}),
        Delete(keys[3], 7),
        Check(keys[4], 7),
        Create(keys[5], {}),
    ]
    with pytest.raises(WriteConflictError) as conflict:
        store.write(*writes)
    assert conflict.value.failed == {n: Record(keys[n], 0, {"at": keys[n].sort}) for n in (0, 2, 3, 4)}
    assert store.get(keys[5]) is None


def test_a_single_write_tells_what_it_found(store: DynamoMetadataStore, dynamodb: DynamoDBClient, partition: str):
    key = Key(partition, "a")
    store.write(Create(key, {"n": 1}))
    counter = RequestCounter(dynamodb)
    for write, kind in ((Create(key, {}), "PutItem"), (Replace(key, {}, 7), "PutItem"), (Delete(key, 7), "DeleteItem")):
        with counter.counting() as calls, pytest.raises(WriteConflictError) as conflict:
            store.write(write)
        assert conflict.value.failed == {0: Record(key, 0, {"n": 1})}
        assert calls == {kind: 1}


def test_a_repeated_transaction_sends_the_same_request(troubled: MakeTroubled, partition: str):
    """Else DynamoDB would refuse its token instead of recognising the repetition."""
    store, client = troubled((READ_TIMEOUT, False), (THROTTLED, False))
    store.write(
        Create(Key(partition, "a"), {"n": 1}), Check(Key(partition, "b"), None), Create(Key(partition, "c"), {})
    )
    first, *repeated = client.requests
    assert repeated == [first, first]
    assert first["ClientRequestToken"]


@pytest.mark.parametrize(
    ("trouble", "effect"),
    [(THROTTLED, "nothing was changed"), (NO_CONNECTION, "nothing was changed"), (READ_TIMEOUT, "may have taken")],
)
def test_patience_has_an_end_that_says_what_is_known(
    dynamodb: DynamoDBClient, table_name: str, partition: str, trouble: Exception, effect: str
):
    pauses = Pauses()
    client: Any = TroubledClient(dynamodb, *[(trouble, False)] * 100)
    store = DynamoMetadataStore(table_name, client, retries=pauses.retries())
    with pytest.raises(UnavailableError, match=effect) as unavailable:
        store.write(Create(Key(partition, "a"), {}))
    assert unavailable.value.__cause__ is trouble
    assert client.calls == ATTEMPTS_MAX
    assert pauses.slept == sorted(pauses.slept)
    assert sum(pauses.slept) < RETRIES_END_AFTER_S


def test_no_attempt_starts_after_the_deadline(dynamodb: DynamoDBClient, table_name: str, partition: str):
    now_s = iter(range(0, 100, 5))
    retries = Retries(sleep=lambda _: None, monotonic_s=lambda: float(next(now_s)))
    client: Any = TroubledClient(dynamodb, *[(READ_TIMEOUT, False)] * 100)
    with pytest.raises(UnavailableError):
        DynamoMetadataStore(table_name, client, retries=retries).get(Key(partition, "a"))
    assert client.calls == 3


def test_batch_reads_ask_again_for_what_was_left_out(dynamodb: DynamoDBClient, table_name: str, partition: str):
    keys = [Key(partition, f"{n}") for n in range(5)]
    DynamoMetadataStore(table_name, dynamodb).write(*[Create(key, {}) for key in keys])
    pauses = Pauses()

    class Forgetful:
        """Answers one key per request, every second time none."""

        def __init__(self) -> None:
            self.calls = 0

        def batch_get_item(self, RequestItems: Any) -> Any:
            self.calls += 1
            wanted = RequestItems[table_name]["Keys"]
            served = wanted[: self.calls % 2]
            answer = dynamodb.batch_get_item(RequestItems={table_name: {"Keys": served}}) if served else {}
            left = wanted[len(served) :]
            return {**answer, "UnprocessedKeys": {table_name: {"Keys": left}} if left else {}}

    client: Any = Forgetful()
    store = DynamoMetadataStore(table_name, client, retries=pauses.retries())
    assert store.get_many(keys) == [Record(key, 0, {}) for key in keys]
    assert client.calls == 9
    assert len(pauses.slept) == 4


def test_batch_reads_without_progress_end(dynamodb: DynamoDBClient, table_name: str, partition: str):
    class Deaf:
        def batch_get_item(self, RequestItems: Any) -> Any:
            return {"Responses": {}, "UnprocessedKeys": RequestItems}

    client: Any = Deaf()
    with pytest.raises(UnavailableError, match="unread"):
        DynamoMetadataStore(table_name, client, retries=Pauses().retries()).get_many([Key(partition, "a")])


def test_a_table_that_is_not_there_is_said_so(dynamodb: DynamoDBClient, partition: str):
    store = DynamoMetadataStore("no-such-table", dynamodb)
    calls = [lambda: store.get(Key("a", "b")), lambda: store.write(Create(Key("a", "b"), {}))]
    for call in [*calls, lambda: store.write(Create(Key("a", "b"), {}), Create(Key("a", "c"), {}))]:
        with pytest.raises(UnavailableError, match=r"no-such-table.*ResourceNotFoundException") as refused:
            call()
        assert refused.value.specific_code == "metadata_store_refused"


@pytest.mark.parametrize("code", REFUSALS)
def test_refusal_by_rights_keys_or_clocks_is_repeated(dynamodb: DynamoDBClient, table_name: str, code: str):
    for call in calls_of_all_kinds():
        client: Any = TroubledClient(dynamodb, (refusal(f"com.amazon.coral.service#{code}"), False))
        with pytest.raises(UnavailableError, match=code) as refused:
            call(DynamoMetadataStore(table_name, client))
        assert refused.value.specific_code == METADATA_STORE_REFUSED
        assert refused.value.details == {"cause": code}
        assert client.calls == 1


@pytest.mark.parametrize(
    "trouble",
    [
        refusal("ValidationException"),
        refusal("ItemCollectionSizeLimitExceededException"),
        refusal("TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": "ValidationError"}]),
    ],
)
def test_item_that_dynamodb_rejects_is_refused_for_good(
    dynamodb: DynamoDBClient, table_name: str, trouble: ClientError
):
    for call in calls_of_all_kinds():
        client: Any = TroubledClient(dynamodb, (trouble, False))
        with pytest.raises(ItemRefusedError):
            call(DynamoMetadataStore(table_name, client))
        assert client.calls == 1


def test_without_credentials_nothing_is_tried_twice(dynamodb: DynamoDBClient, table_name: str):
    client: Any = TroubledClient(dynamodb, (NoCredentialsError(), False))
    with pytest.raises(UnavailableError, match="credentials"):
        DynamoMetadataStore(table_name, client).get(Key("a", "b"))
    assert client.calls == 1


def test_port_without_a_listener_is_unavailable(monkeypatch: pytest.MonkeyPatch, unused_port: int):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port}")
    store = DynamoMetadataStore("any", retries=Pauses().retries())
    with pytest.raises(UnavailableError, match="nothing was changed"):
        store.write(Create(Key("a", "b"), {}))


def test_a_server_that_hangs_up_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch, rude_endpoint: tuple[str, list[bytes]]
):
    endpoint, received = rude_endpoint
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client: Any = dynamodb_client()
    store = DynamoMetadataStore("any", client, retries=Pauses().retries())
    with pytest.raises(UnavailableError, match="may have taken effect") as unavailable:
        store.write(Create(Key("a", "b"), {}))
    assert unavailable.value.details == {"attempts": ATTEMPTS_MAX, "maybe_applied": True}
    assert len([start for start in received if b"POST" in start]) == ATTEMPTS_MAX
    with pytest.raises(UnavailableError, match="nothing was changed"):
        store.get(Key("a", "b"))  # a read changes nothing, whether it arrived or not
    client.close()


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"version": {"N": "1"}, "body": {"S": "{"}},
        {"version": {"N": "1"}, "body": {"S": "[]"}},
        {"version": {"N": "-1"}, "body": {"S": "{}"}},
        {"version": {"S": "x"}, "body": {"S": "{}"}},
    ],
)
def test_items_of_another_application_are_corrupt(
    store: DynamoMetadataStore, dynamodb: DynamoDBClient, table_name: str, partition: str, attributes: Any
):
    dynamodb.put_item(TableName=table_name, Item={"partition": {"S": partition}, "sort": {"S": "a"}, **attributes})
    with pytest.raises(CorruptError):
        store.get(Key(partition, "a"))
    dynamodb.delete_item(TableName=table_name, Key={"partition": {"S": partition}, "sort": {"S": "a"}})


def test_an_item_is_json_text_with_its_version(dynamodb: DynamoDBClient, table_name: str, partition: str):
    store = DynamoMetadataStore(table_name, dynamodb, new_write_id=lambda: "w")
    store.write(Create(Key(partition, "a"), {"low": 0.1, "tags": ["é"]}))
    item = dynamodb.get_item(TableName=table_name, Key={"partition": {"S": partition}, "sort": {"S": "a"}})["Item"]
    assert item == {
        "partition": {"S": partition},
        "sort": {"S": "a"},
        "version": {"N": "0"},
        "body": {"S": '{"low":0.1,"tags":["\\u00e9"]}'},
        "write_id": {"S": "w"},
    }

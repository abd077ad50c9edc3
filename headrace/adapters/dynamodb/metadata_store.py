"""The metadata store on DynamoDB: one request per operation, conditional on versions, strongly consistent.

It does not create its table, cache anything, or read from an index. A write whose answer was lost is repeated and
recognised by its `write_id`, so that a caller never sees a conflict with itself; where even that cannot tell,
`UnavailableError` says that the outcome is unknown.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.adapters.dynamodb import items
from headrace.adapters.dynamodb.client import dynamodb_client
from headrace.adapters.dynamodb.retries import (
    CONDITION_FAILED,
    CONDITION_FAILED_REASON,
    TRANSACTION_CANCELED,
    RefusedRequestError,
    Retries,
)
from headrace.model.errors import HeadraceError, InvalidRequestError, UnavailableError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    READS_PER_BATCH_MAX,
    WRITES_PER_TRANSACTION_MAX,
    Check,
    Delete,
    Key,
    Page,
    Record,
    Write,
    WriteConflictError,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_WRITE_ID_BYTES = 12


def _random_write_id() -> str:
    return secrets.token_urlsafe(_WRITE_ID_BYTES)


class DynamoMetadataStore:
    """`ports.metadata_store.MetadataStore` over a table with keys `partition` (S, hash) and `sort` (S, range).

    Safe for any number of threads. `client` must not retry by itself (see `client.dynamodb_client`, the default).
    """

    def __init__(
        self,
        table_name: str,
        client: DynamoDBClient | None = None,
        *,
        retries: Retries | None = None,
        new_write_id: Callable[[], str] = _random_write_id,
    ) -> None:
        self._table_name = table_name
        self._client = client if client is not None else dynamodb_client()
        self._retries = retries or Retries()
        self._new_write_id = new_write_id

    def get(self, key: Key) -> Record | None:
        request = {"TableName": self._table_name, "Key": items.key_attributes(key), "ConsistentRead": True}
        answer = self._ask(f"reading {key}", self._client.get_item, request)
        return items.record(answer["Item"]) if "Item" in answer else None

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        if len(keys) > READS_PER_BATCH_MAX or len(set(keys)) != len(keys):
            raise InvalidRequestError(f"a batch reads at most {READS_PER_BATCH_MAX} distinct keys, not {len(keys)}")
        if not keys:
            return []
        found: dict[Key, Record] = {}
        wanted: list[dict[str, Any]] = [items.key_attributes(key) for key in keys]
        failures = 0
        while wanted:
            request = {"RequestItems": {self._table_name: {"Keys": wanted, "ConsistentRead": True}}}
            answer = self._ask(f"reading {len(wanted)} records", self._client.batch_get_item, request)
            for item in answer.get("Responses", {}).get(self._table_name, ()):
                record = items.record(item)
                found[record.key] = record
            unprocessed = answer.get("UnprocessedKeys", {}).get(self._table_name, {}).get("Keys", [])
            # What does not fit into one answer (16 MB) is left over too: only an answer without progress is a failure.
            failures = failures + 1 if len(unprocessed) == len(wanted) else 0
            wanted = unprocessed
            if failures >= self._retries.attempts_max:
                raise UnavailableError(f"DynamoDB left {len(wanted)} of {len(keys)} records unread: try again")
            if failures:
                self._retries.pause(failures)
        return [found.get(key) for key in keys]

    def query(
        self,
        partition: str,
        *,
        first: str = "",
        last: str | None = None,
        limit: int,
        descending: bool = False,
        bytes_max: int | None = None,
    ) -> Page:
        if limit < 1:
            raise InvalidRequestError(f"a query needs a limit of at least 1, not {limit}")
        if last is not None and (not last or last < first):
            return Page([], None)
        request = self._query_request(partition, first, last, descending)
        records: list[Record] = []
        bytes_left = math.inf if bytes_max is None else bytes_max
        while True:
            request["Limit"] = limit - len(records)
            answer = self._ask(f"querying {partition}", self._client.query, request)
            resume = answer.get("LastEvaluatedKey")
            for position, item in enumerate(answer["Items"], 1):
                records.append(items.record(item))
                bytes_left -= items.body_bytes(item)
                if bytes_left <= 0:
                    more = resume or position < len(answer["Items"])
                    return Page(records, records[-1].key.sort if more else None)
            if not resume:
                return Page(records, None)
            if len(records) >= limit:
                return Page(records, records[-1].key.sort)
            request["ExclusiveStartKey"] = resume  # an answer ends after 1 MB, however few records that is

    def write(self, *writes: Write) -> None:
        keys = {write.key for write in writes}
        if not 1 <= len(writes) <= WRITES_PER_TRANSACTION_MAX or len(keys) != len(writes):
            raise InvalidRequestError(
                f"a transaction takes 1 to {WRITES_PER_TRANSACTION_MAX} writes on distinct keys, "
                f"not {len(writes)} on {len(keys)}"
            )
        if len(writes) > 1:
            self._transact(writes)
        elif isinstance(writes[0], Check):
            self._check(writes[0])
        else:
            self._write_one(writes[0])

    def _write_one(self, write: Write) -> None:
        write_id = self._new_write_id()
        request = items.write_request(self._table_name, write, write_id)
        send: Callable[..., Any] = self._client.delete_item if isinstance(write, Delete) else self._client.put_item
        try:
            self._retries.run(f"writing {write.key}", lambda: send(**request))
        except RefusedRequestError as refused:
            if refused.code != CONDITION_FAILED:
                raise self._refusal(f"writing {write.key}", refused) from refused
            self._settle(refused, [write], {0: refused.response.get("Item")}, write_id)

    def _transact(self, writes: Sequence[Write]) -> None:
        write_id = self._new_write_id()
        entries = items.transaction_entries(self._table_name, writes, write_id)
        request: dict[str, Any] = {"TransactItems": entries, "ClientRequestToken": write_id}
        what = f"writing {len(writes)} records from {writes[0].key} on"
        try:
            self._retries.run(what, lambda: self._client.transact_write_items(**request))
        except RefusedRequestError as refused:
            found = {
                index: reason.get("Item")
                for index, reason in enumerate(refused.reasons)
                if reason.get("Code") == CONDITION_FAILED_REASON
            }
            if refused.code != TRANSACTION_CANCELED or not found:
                raise self._refusal(what, refused) from refused
            self._settle(refused, writes, found, write_id)

    def _check(self, check: Check) -> None:
        """A condition that stands alone is a read: DynamoDB has no other request for it."""
        record = self.get(check.key)
        holds = record is None if check.version is None else record is not None
        if record is not None and check.version not in (None, ANY_VERSION):
            holds = record.version == check.version
        if not holds:
            raise _conflict([check], {0: record})

    def _settle(
        self,
        refused: RefusedRequestError,
        writes: Sequence[Write],
        found: Mapping[int, Mapping[str, Any] | None],
        write_id: str,
    ) -> None:
        """Returns if the conditions failed only because an earlier attempt of this very write had succeeded."""
        failed = {index: items.record(item) if item else None for index, item in found.items()}
        if not refused.maybe_applied:
            raise _conflict(writes, failed) from refused
        if any(items.is_written_by(item, write_id) for item in found.values()):
            return
        raise UnavailableError(
            f"the answer to the write at {writes[0].key} was lost and the records changed since: "
            "its outcome is unknown, read again",
            details={"maybe_applied": True},
        ) from refused

    def _query_request(self, partition: str, first: str, last: str | None, descending: bool) -> dict[str, Any]:
        condition, values = "#p = :p", {":p": {"S": partition}}
        if first and last is not None:
            condition += " AND #s BETWEEN :first AND :last"
        elif first:
            condition += " AND #s >= :first"
        elif last is not None:
            condition += " AND #s <= :last"
        if first:
            values[":first"] = {"S": first}
        if last is not None:
            values[":last"] = {"S": last}
        names = {"#p": items.PARTITION} | ({"#s": items.SORT} if "#s" in condition else {})
        return {
            "TableName": self._table_name,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ConsistentRead": True,
            "ScanIndexForward": not descending,
        }

    def _ask(self, what: str, operation: Callable[..., Any], request: dict[str, Any]) -> Any:
        try:
            return self._retries.run(what, lambda: operation(**request))
        except RefusedRequestError as refused:
            raise self._refusal(what, refused) from refused

    def _refusal(self, what: str, refused: RefusedRequestError) -> HeadraceError:
        return HeadraceError(
            f"{what}: DynamoDB refused on table {self._table_name}: {refused}",
            details={"table": self._table_name, "cause": refused.code},
            code="metadata_store_refused",
        )


def _conflict(writes: Sequence[Write], failed: Mapping[int, Record | None]) -> WriteConflictError:
    first = writes[min(failed)]
    return WriteConflictError(f"the condition of {type(first).__name__.lower()} at {first.key} does not hold", failed)

"""The items of a whole table as DynamoDB has them, for a restore: scanned, compared, and copied with their versions.

The metadata store gives each write the next version. A restored record needs the version that it had, because other
records and processes know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.adapters.dynamodb.client import CONDITION_FAILED, RefusedRequestError, Retries, dynamodb_client
from headrace.adapters.dynamodb.record_item import RecordItem, key_attributes, record
from headrace.model.errors import ConflictError, NotFoundError, UnavailableError
from headrace.ports.metadata_store import READS_PER_BATCH_MAX, Key, Record, metadata_store_refused

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Item = Mapping[str, Any]
"""The attributes of an item in the format of a request."""

NO_TABLE: Final = "ResourceNotFoundException"
ITEMS_PER_PAGE: Final = READS_PER_BATCH_MAX
"""Of a scan, so that the same items of another table are one batch read."""

_ABSENT: Final[Mapping[str, Any]] = {
    "ConditionExpression": "attribute_not_exists(#partition)",
    "ExpressionAttributeNames": {"#partition": "partition"},
}


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """Where a table comes from: the ARN of the table that was restored, and to which time; None if it was not."""

    arn: str
    restored_from: str | None
    restored_to_ms: int | None


class TableItems:
    """The items of one table. Safe for any number of threads; its methods block."""

    def __init__(self, table: str, client: DynamoDBClient | None = None, retries: Retries | None = None) -> None:
        self.table = table
        self._client: Any = client if client is not None else dynamodb_client()
        self._retries = retries or Retries()

    def origin(self) -> TableOrigin:
        """Raises NotFoundError if there is no such table; UnavailableError if DynamoDB does not answer."""
        found = self._ask("describe_table")["Table"]
        summary = found.get("RestoreSummary", {})
        time = summary.get("RestoreDateTime")
        return TableOrigin(
            found["TableArn"], summary.get("SourceTableArn"), None if time is None else int(time.timestamp() * 1000)
        )

    def pages(self) -> Iterator[list[Item]]:
        """All items, at most ITEMS_PER_PAGE at a time; those of a partition in the order of their sort keys.

        Raises:
            NotFoundError: there is no such table.
            UnavailableError: DynamoDB does not answer.
        """
        start: dict[str, Any] = {}
        while True:
            page = self._ask("scan", ConsistentRead=True, **start)  # of 1 MB
            items = page["Items"]
            yield from (items[first : first + ITEMS_PER_PAGE] for first in range(0, len(items), ITEMS_PER_PAGE))
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def get_many(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """The items of those keys that have one, at most READS_PER_BATCH_MAX keys. Raises UnavailableError."""
        found: dict[Key, Item] = {}
        wanted = [key_attributes(key) for key in keys]
        failures = 0
        while wanted:
            answer = self._ask_any(
                "batch_get_item", RequestItems={self.table: {"Keys": wanted, "ConsistentRead": True}}
            )
            found |= {key_of(item): item for item in answer.get("Responses", {}).get(self.table, ())}
            left = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
            failures = failures + 1 if len(left) == len(wanted) else 0
            if failures >= self._retries.attempts_max:
                raise UnavailableError(f"DynamoDB left {len(left)} items of {self.table} unread: try again")
            if failures:
                self._retries.pause(failures)
            wanted = left
        return found

    def records(self, keys: Sequence[Key]) -> dict[Key, Record]:
        """The records at those keys that have one; raises as `get_many`, and CorruptError as `record_of`."""
        return {key: record_of(item) for key, item in self.get_many(keys).items()}

    def put(self, item: Item, former: Item | None) -> None:
        """Write an item in the place of `former`, as it was read, or where there was none.

        Raises:
            ConflictError: another process has written there since.
            UnavailableError: DynamoDB does not answer.
        """
        condition = _ABSENT if former is None else _unchanged(former)
        self._write("put_item", key_of(item), item, Item=item, **condition)

    def delete(self, former: Item) -> None:
        """Remove an item that is still as it was read; raises as `put`. One that is gone is fine."""
        key = key_of(former)
        self._write("delete_item", key, None, Key=key_attributes(key), **_unchanged(former))

    def _write(self, operation: str, key: Key, wanted: Item | None, **parameters: Any) -> None:
        try:
            self._retries.run(
                f"writing {key}", lambda: getattr(self._client, operation)(TableName=self.table, **parameters)
            )
        except RefusedRequestError as refused:
            if refused.code != CONDITION_FAILED:
                raise metadata_store_refused(f"writing {key} of {self.table}: {refused}", refused.code) from refused
            if self.get_many([key]).get(key) != wanted:  # else an earlier attempt had no answer
                raise ConflictError(
                    f"another process has changed {key} of the table {self.table}: stop all stores and functions"
                ) from refused

    def _ask(self, operation: str, **parameters: Any) -> Any:
        return self._ask_any(operation, TableName=self.table, **parameters)

    def _ask_any(self, operation: str, **parameters: Any) -> Any:
        what = f"reading the table {self.table}"
        try:
            return self._retries.run(what, lambda: getattr(self._client, operation)(**parameters), is_read=True)
        except RefusedRequestError as refused:
            if refused.code == NO_TABLE:
                raise NotFoundError(f"there is no table {self.table}") from refused
            raise metadata_store_refused(f"{what}: {refused}", refused.code) from refused


def key_of(item: Item) -> Key:
    """The key of an item."""
    return Key(item["partition"]["S"], item["sort"]["S"])


def record_of(item: Item) -> Record:
    """The record in an item; raises CorruptError if another program has written it."""
    return record(RecordItem.from_raw_data(dict(item)))


def is_same(item: Item, other: Item | None) -> bool:
    """Whether two items have the same version and body."""
    return other is not None and (item["version"], item["body"]) == (other.get("version"), other.get("body"))


def _unchanged(former: Item) -> dict[str, Any]:
    """The condition that an item is as it was read."""
    values = {":version": former["version"]}
    written = "attribute_not_exists(#write)"
    if "write_id" in former:
        written, values[":write"] = "#write = :write", former["write_id"]
    return {
        "ConditionExpression": f"#version = :version AND {written}",
        "ExpressionAttributeNames": {"#version": "version", "#write": "write_id"},
        "ExpressionAttributeValues": values,
    }

"""The metadata store on DynamoDB, through pynamodb: conditional writes and strongly consistent reads.

The store does not create its table, cache records or read from an index. A write whose answer was lost is repeated and
recognised by its `write_id`, so a caller never gets a conflict with its own write. If a later write has replaced the
item, the outcome cannot be determined, and the store raises `UnavailableError`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.constants import ITEM, ITEMS, KEYS, LAST_EVALUATED_KEY, RESPONSES, UNPROCESSED_KEYS
from pynamodb.exceptions import DoesNotExist
from pynamodb.transactions import TransactWrite

from headrace.adapters.dynamodb import record_item
from headrace.adapters.dynamodb.client import (
    CONDITION_FAILED,
    CONDITION_FAILED_REASON,
    TRANSACTION_CANCELED,
    RefusedRequestError,
    Retries,
    dynamodb_client,
)
from headrace.adapters.dynamodb.record_item import connect, connected_model
from headrace.model.errors import HeadraceError, InvalidRequestError, UnavailableError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    READS_PER_BATCH_MAX,
    WRITES_PER_TRANSACTION_MAX,
    Check,
    Create,
    Delete,
    ItemRefusedError,
    Key,
    Page,
    Record,
    Replace,
    Write,
    WriteConflictError,
    check_key,
    check_range,
    metadata_store_refused,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")

_WRITE_ID_BYTES = 12
_PLACES: Mapping[type[Write], int] = {Check: 0, Delete: 1, Create: 2, Replace: 2}


def _random_write_id() -> str:
    return secrets.token_urlsafe(_WRITE_ID_BYTES)


class DynamoMetadataStore:
    """`ports.metadata_store.MetadataStore` on a table with keys `partition` (S, hash) and `sort` (S, range).

    Safe for any number of threads. `client` must not retry requests, like the default, `client.dynamodb_client`.
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
        self._table = connect(table_name, client if client is not None else dynamodb_client())
        self._model = connected_model(self._table)
        self._retries = retries or Retries()
        self._new_write_id = new_write_id

    def get(self, key: Key) -> Record | None:
        check_key(key)
        try:
            item = self._ask(f"reading {key}", lambda: self._model.get(key.partition, key.sort, consistent_read=True))
        except DoesNotExist:
            return None
        return record_item.record(item)

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        if len(keys) > READS_PER_BATCH_MAX or len(set(keys)) != len(keys):
            raise InvalidRequestError(f"a batch reads at most {READS_PER_BATCH_MAX} distinct keys, not {len(keys)}")
        if not keys:
            return []
        found: dict[Key, Record] = {}
        wanted: list[Any] = [record_item.key_attributes(key) for key in keys]
        failures = 0
        while wanted:
            # Not `Model.batch_get`: it requests unprocessed keys again without a pause and without a limit.
            batch = partial(self._table.batch_get_item, wanted, consistent_read=True)
            answer = self._ask(f"reading {len(wanted)} records", batch)
            for attributes in answer.get(RESPONSES, {}).get(self._table_name, ()):
                record = record_item.record(self._model.from_raw_data(attributes))
                found[record.key] = record
            unprocessed = answer.get(UNPROCESSED_KEYS, {}).get(self._table_name, {}).get(KEYS, [])
            # Items that exceed an answer's limit of 16 MB are unprocessed too, so only no progress counts as a failure.
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
        check_range(partition, first, last, limit)
        if last is not None and (not last or last < first):
            return Page([], None)
        records: list[Record] = []
        bytes_left = math.inf if bytes_max is None else bytes_max
        range_condition, resume = record_item.sort_condition(first, last), None
        while True:
            # Not `Model.query`: it cannot repeat the request for a single page.
            page = partial(
                self._table.query,
                partition,
                range_key_condition=range_condition,
                consistent_read=True,
                exclusive_start_key=resume,  # An answer ends after 1 MB, even if it has few records.
                limit=limit - len(records),
                scan_index_forward=not descending,
            )
            answer = self._ask(f"querying {partition}", page)
            resume = answer.get(LAST_EVALUATED_KEY)
            for position, attributes in enumerate(answer[ITEMS], 1):
                item = self._model.from_raw_data(attributes)
                records.append(record_item.record(item))
                bytes_left -= len(item.body)
                if bytes_left <= 0:
                    more = resume or position < len(answer[ITEMS])
                    return Page(records, records[-1].key.sort if more else None)
            if not resume:
                return Page(records, None)
            if len(records) >= limit:
                return Page(records, records[-1].key.sort)

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
        (item,), condition = record_item.transaction_items(self._model, [write], write_id), record_item.condition(write)
        send = item.delete if isinstance(write, Delete) else item.save
        try:
            self._retries.run(f"writing {write.key}", lambda: send(condition))
        except RefusedRequestError as refused:
            if refused.code != CONDITION_FAILED:
                raise self._refusal(f"writing {write.key}", refused) from refused
            self._settle(refused, [write], {0: refused.response.get(ITEM)}, write_id)

    def _transact(self, writes: Sequence[Write]) -> None:
        write_id = self._new_write_id()
        written = record_item.transaction_items(self._model, writes, write_id)

        def send() -> None:
            with TransactWrite(connection=self._table.connection, client_request_token=write_id) as transaction:
                for write, item in zip(writes, written, strict=True):
                    condition = record_item.condition(write)
                    if isinstance(write, Check):
                        transaction.condition_check(self._model, item.partition, item.sort, condition)
                    elif isinstance(write, Delete):
                        transaction.delete(item, condition)
                    else:
                        transaction.save(item, condition)

        what = f"writing {len(writes)} records from {writes[0].key} on"
        try:
            self._retries.run(what, send)
        except RefusedRequestError as refused:
            order = _transaction_order(writes)
            found = {
                order[position]: reason.get(ITEM)
                for position, reason in enumerate(refused.reasons)
                if reason.get("Code") == CONDITION_FAILED_REASON
            }
            if refused.code != TRANSACTION_CANCELED or not found:
                raise self._refusal(what, refused) from refused
            self._settle(refused, writes, found, write_id)

    def _check(self, check: Check) -> None:
        """Evaluate a condition without a write. DynamoDB has no request for this, so the record is read."""
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
        """Return if the conditions failed only because an earlier attempt of this write succeeded; raise otherwise."""
        there = {
            index: self._model.from_raw_data(dict(attributes)) if attributes else None
            for index, attributes in found.items()
        }
        failed = {index: record_item.record(item) if item else None for index, item in there.items()}
        if not refused.maybe_applied:
            raise _conflict(writes, failed) from refused
        if any(item is not None and item.write_id == write_id for item in there.values()):
            return
        raise UnavailableError(
            f"the answer to the write at {writes[0].key} was lost and the records changed since: "
            "its outcome is unknown, read again",
            details={"maybe_applied": True},
        ) from refused

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        try:
            return self._retries.run(what, request, is_read=True)
        except RefusedRequestError as refused:
            raise self._refusal(what, refused) from refused

    def _refusal(self, what: str, refused: RefusedRequestError) -> HeadraceError:
        if refused.is_of_item:
            return ItemRefusedError(f"{what}: DynamoDB refused on table {self._table_name}: {refused}")
        return metadata_store_refused(f"{what}, on table {self._table_name}: {refused}", refused.code)


def _conflict(writes: Sequence[Write], failed: Mapping[int, Record | None]) -> WriteConflictError:
    first = writes[min(failed)]
    return WriteConflictError(f"the condition of {type(first).__name__.lower()} at {first.key} does not hold", failed)


def _transaction_order(writes: Sequence[Write]) -> list[int]:
    """The indexes of `writes` in the order in which pynamodb sends them: checks, then deletions, then puts."""
    return sorted(range(len(writes)), key=lambda index: _PLACES[type(writes[index])])

"""A metadata store in the memory of one process: the reference behaviour of `ports.metadata_store`.

Bodies are kept as JSON text, so that a caller can neither store what DynamoDB would refuse nor change a stored body
through a reference that it kept. Nothing is durable.
"""

from __future__ import annotations

import json
import math
import random
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    READS_PER_BATCH_MAX,
    WRITES_PER_TRANSACTION_MAX,
    Check,
    Create,
    Delete,
    Key,
    Page,
    Record,
    Replace,
    Write,
    WriteConflictError,
    check_key,
    check_range,
    checked_texts,
)


@dataclass(slots=True)
class _Stored:
    version: int
    text: str


@dataclass(slots=True)
class _Partition:
    """Records by sort key, and the sort keys in order. Python orders text by code point, which is UTF-8's order."""

    records: dict[str, _Stored] = field(default_factory=dict)
    sorts: list[str] = field(default_factory=list)


class TornReads:
    """A batch read as DynamoDB does it: each record by itself, in any order, and others may write in between.

    `between` is called between two single reads and may write to the store. The order follows from `seed`.
    """

    def __init__(self, seed: int, between: Callable[[], object] = lambda: None) -> None:
        self._random = random.Random(seed)
        self._between = between

    def read(self, keys: Sequence[Key], read: Callable[[Key], Record | None]) -> list[Record | None]:
        """What `read` returns for each of the keys, in the order of `keys`."""
        records: dict[Key, Record | None] = {}
        for key in self._random.sample(list(keys), len(keys)):
            if records:
                self._between()
            records[key] = read(key)
        return [records[key] for key in keys]


class MemoryMetadataStore:
    """`ports.metadata_store.MetadataStore` for one process; safe for any number of threads.

    Without `torn_reads` a batch read is a snapshot, which the port does not promise.
    """

    def __init__(self, torn_reads: TornReads | None = None) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[str, _Partition] = {}
        self._torn_reads = torn_reads

    def get(self, key: Key) -> Record | None:
        check_key(key)
        return self._read_locked(key)

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        if len(keys) > READS_PER_BATCH_MAX or len(set(keys)) != len(keys):
            raise InvalidRequestError(f"a batch reads at most {READS_PER_BATCH_MAX} distinct keys, not {len(keys)}")
        for key in keys:
            check_key(key)
        if self._torn_reads is not None:
            return self._torn_reads.read(keys, self._read_locked)
        with self._lock:
            return [self._read(key) for key in keys]

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
        with self._lock:
            sorts = self._partitions.get(partition, _Partition()).sorts
            start = bisect_left(sorts, first)
            stop = len(sorts) if last is None else bisect_right(sorts, last)
            inside = sorts[start:stop]
            if descending:
                inside.reverse()
            records: list[Record] = []
            bytes_left = math.inf if bytes_max is None else bytes_max
            for sort in inside[:limit]:
                if (record := self._read(Key(partition, sort))) is not None:
                    records.append(record)
                    bytes_left -= len(json.dumps(record.body, separators=(",", ":")))
                if bytes_left <= 0:
                    break
        return Page(records, records[-1].key.sort if len(inside) > len(records) else None)

    def write(self, *writes: Write) -> None:
        keys = {write.key for write in writes}
        if not 1 <= len(writes) <= WRITES_PER_TRANSACTION_MAX or len(keys) != len(writes):
            raise InvalidRequestError(
                f"a transaction takes 1 to {WRITES_PER_TRANSACTION_MAX} writes on distinct keys, "
                f"not {len(writes)} on {len(keys)}"
            )
        texts = checked_texts(writes)
        with self._lock:
            stored = {index: self._read(write.key) for index, write in enumerate(writes)}
            failed = {index: record for index, record in stored.items() if not _holds(writes[index], record)}
            if failed:
                first = writes[min(failed)]
                raise WriteConflictError(
                    f"the condition of {type(first).__name__.lower()} at {first.key} does not hold", failed
                )
            for write, text in zip(writes, texts, strict=True):
                self._apply(write, text or "")

    def _read_locked(self, key: Key) -> Record | None:
        with self._lock:
            return self._read(key)

    def _read(self, key: Key) -> Record | None:
        partition = self._partitions.get(key.partition)
        stored = partition.records.get(key.sort) if partition else None
        return Record(key, stored.version, json.loads(stored.text)) if stored else None

    def _apply(self, write: Write, text: str) -> None:
        if isinstance(write, Check):
            return
        partition = self._partitions.setdefault(write.key.partition, _Partition())
        sort = write.key.sort
        if isinstance(write, Create):
            insort(partition.sorts, sort)
            partition.records[sort] = _Stored(write.version, text)
        elif isinstance(write, Replace):
            partition.records[sort] = _Stored(write.version + 1, text)
        elif partition.records.pop(sort, None) is not None:
            del partition.sorts[bisect_left(partition.sorts, sort)]
            if not partition.sorts:
                del self._partitions[write.key.partition]


def _holds(write: Write, stored: Record | None) -> bool:
    """Whether the condition of a write is met by what is stored."""
    if isinstance(write, Create):
        return stored is None
    if isinstance(write, Delete) and write.version is None:
        return True
    if write.version is None or stored is None:
        return write.version is None and stored is None
    return (isinstance(write, Check) and write.version == ANY_VERSION) or stored.version == write.version

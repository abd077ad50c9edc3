"""Measures requests to a metadata store, and their units of the bill of DynamoDB.

A strongly consistent read takes one unit for each 4 KB of an item (of all items together in a query), a write one for
each KB, in a transaction two. A check within a transaction counts as a write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.ports.metadata_store import Key, Page, Record, Write

READ_UNIT_BYTES, WRITE_UNIT_BYTES = 4096, 1024
FIXED_BYTES = len("partition") + len("sort") + len("version") + 2 + len("body") + len("write_id") + 16
"""Of an item: names of attributes, its version, the id of its write."""


@dataclass
class Bill:
    """Requests and units of one piece of work; `store` counts requests to segment stores, one for each segment."""

    reads: int = 0
    writes: int = 0
    read_units: int = 0
    write_units: int = 0
    messages: int = 0
    store: int = 0

    @property
    def cells(self) -> tuple[int, ...]:
        return self.reads, self.writes, self.read_units, self.write_units, self.messages, self.store


class StoreMeter:
    """Reads the bill of every request to a metadata store from now on."""

    def __init__(self, store: Any) -> None:
        self.bill = Bill()
        self._get = store.get
        self._watch_store(store)

    def measured(self, act: Callable[[], object]) -> Bill:
        self.bill = Bill()
        act()
        return self.bill

    def _count(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            setattr(self.bill, name, getattr(self.bill, name) + amount)

    def _watch(self, target: Any, name: str, note: Callable[[Any], None]) -> None:
        inner = getattr(target, name)

        def call(*arguments: Any, **options: Any) -> Any:
            answer = inner(*arguments, **options)
            note(answer)
            return answer

        setattr(target, name, call)

    def _watch_store(self, store: Any) -> None:
        def read(found: Sequence[Record | None]) -> None:
            self._count(reads=1, read_units=sum(_units(_size(record), READ_UNIT_BYTES) for record in found))

        def query(page: Page) -> None:
            size = sum(_size(record) for record in page.records)
            self._count(reads=1, read_units=_units(size, READ_UNIT_BYTES))

        inner = store.write

        def write(*writes: Write) -> None:
            sizes = [max(_size(self._get(write.key)), _size_written(write)) for write in writes]
            factor = 2 if len(writes) > 1 else 1
            units = sum(_units(size, WRITE_UNIT_BYTES) for size in sizes)
            self._count(writes=1, write_units=factor * units)
            inner(*writes)

        self._watch(store, "get", lambda found: read([found]))
        self._watch(store, "get_many", read)
        self._watch(store, "query", query)
        store.write = write


def _size(record: Record | None) -> int:
    return 0 if record is None else _item_size(record.key, record.body)


def _size_written(write: Write) -> int:
    body = getattr(write, "body", None)
    return 0 if body is None else _item_size(write.key, body)


def _item_size(key: Key, body: Any) -> int:
    text = json.dumps(dict(body), separators=(",", ":"))
    return FIXED_BYTES + len(key.partition.encode()) + len(key.sort.encode()) + len(text)


def _units(size_bytes: int, unit_bytes: int) -> int:
    return max(1, math.ceil(size_bytes / unit_bytes))

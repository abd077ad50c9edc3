"""A watched metadata store whose queries are not snapshots, like those of DynamoDB."""

from __future__ import annotations

from typing import Any

from fuzz.randomness import Random
from fuzz.watched_ports import Calls, WatchedStore
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.ports.metadata_store import Page


class TornQueryStore(WatchedStore):
    """Others may write when a query has read a part of its records. It misses a record that passes to that part."""

    def __init__(self, inner: MemoryMetadataStore, calls: Calls, seed: int) -> None:
        super().__init__(inner, calls)
        self._random = Random(seed)

    def query(self, partition: str, **fields: Any) -> Page:
        def read(**others: Any) -> Page:
            return self._inner.query(partition, **(fields | others))

        def read_torn() -> Page:
            page = read()
            if not page.records or fields.get("bytes_max") is not None:
                return page
            passed = self._random.randrange(len(page.records))
            self._calls.between_reads()
            bound = "last" if fields.get("descending") else "first"
            rest = read(limit=fields["limit"] - passed, **{bound: page.records[passed].key.sort})
            return Page([*page.records[:passed], *rest.records], rest.next_after)

        return self._calls("query", read_torn)

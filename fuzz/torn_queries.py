"""A watched metadata store whose queries are not snapshots, like those of DynamoDB."""

from __future__ import annotations

from fuzz.randomness import Random
from fuzz.watched_ports import Calls, WatchedStore
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.ports.metadata_store import Page


class TornQueryStore(WatchedStore):
    """Others may write when a query has read a part of its records. It misses a record that passes to that part."""

    def __init__(self, inner: MemoryMetadataStore, calls: Calls, seed: int) -> None:
        super().__init__(inner, calls)
        self._random = Random(seed)

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
        def read(first: str, last: str | None, limit: int) -> Page:
            return self._inner.query(
                partition, first=first, last=last, limit=limit, descending=descending, bytes_max=bytes_max
            )

        def read_torn() -> Page:
            page = read(first, last, limit)
            if not page.records or bytes_max is not None:
                return page
            passed = self._random.randrange(len(page.records))
            place = page.records[passed].key.sort
            self._calls.between_reads()
            rest = read(first, place, limit - passed) if descending else read(place, last, limit - passed)
            return Page([*page.records[:passed], *rest.records], rest.next_after)

        return self._calls("query", read_torn)

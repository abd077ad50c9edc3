"""Reads the segments of a table page by page in key order, and merges them into one sequence in key order."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TypeVar

from headrace import wire
from headrace.client.tables.table_segments import TableSegmentRequests

T = TypeVar("T")


async def pages_of_entries(
    requests: TableSegmentRequests, segment: int, low: bytes, high: bytes, page: int
) -> AsyncIterator[tuple[bytes, wire.TableEntry]]:
    """Yields the entries of one segment with stored keys from `low` to `high`, `page` per request.

    Each item is the stored key and the entry.
    """
    token = b""
    while True:
        reply = await requests.ask(segment, partial(_read_entries, page, token, low, high), wire.TableEntriesRead)
        if not reply.entries:
            return
        token = bytes(reply.continuation_token)
        for entry in reply.entries:
            yield entry.key, entry


async def pages_of_keys(
    requests: TableSegmentRequests, segment: int, low: bytes, high: bytes, page: int
) -> AsyncIterator[tuple[bytes, wire.TableKey]]:
    """Like `pages_of_entries`, without values."""
    token = b""
    while True:
        reply = await requests.ask(segment, partial(_read_keys, page, token, low, high), wire.TableKeysRead)
        if not reply.keys:
            return
        token = bytes(reply.continuation_token)
        for key in reply.keys:
            yield key.key, key


async def merged(sources: Sequence[AsyncIterator[tuple[bytes, T]]]) -> AsyncIterator[tuple[bytes, T]]:
    """Merges sources into one sequence in key order. Each source must be in order, and no key may be in two sources."""
    firsts = await asyncio.gather(*(anext(source, None) for source in sources))
    heap = [(one[0], index, one[1]) for index, one in enumerate(firsts) if one is not None]
    heapq.heapify(heap)
    while heap:
        key, index, value = heap[0]
        yield key, value
        following = await anext(sources[index], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following[0], index, following[1]))


def _read_entries(page: int, token: bytes, low: bytes, high: bytes, number: int, name: str) -> wire.WireCommand:
    return wire.ReadTableEntries(number, name, "", page, token, b"", low, high)


def _read_keys(page: int, token: bytes, low: bytes, high: bytes, number: int, name: str) -> wire.WireCommand:
    return wire.ReadTableKeys(number, name, "", page, token, b"", low, high)

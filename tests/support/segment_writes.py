"""Events of two writers, one after the other, on a raw client of a segment store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store_world import RunningStore, WireClient

WRITER, OTHER = 5, 6


async def created_segment(
    running: RunningStore, segment: str, *events: bytes, writer: int = WRITER, first: int = 0
) -> Any:
    """A client of a running store that has made the segment and written these events."""
    client = await running.connect()
    await client.create(segment)
    await write(client, segment, events, writer=writer, first=first)
    return client


async def write(
    client: WireClient, segment: str, events: Sequence[bytes], *, writer: int = WRITER, first: int = 0
) -> None:
    """Events of these numbers on, each acknowledged before the next is sent."""
    await client.set_up(segment, writer)
    for number, data in enumerate(events, first):
        await client.append(writer, number, data)

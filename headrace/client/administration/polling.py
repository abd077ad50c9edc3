"""Requests that several admins send: waiting for a background operation, all pages of a list, and links to chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.api.listings import Listing
from headrace.client.http_api import HttpApi, parsed
from headrace.model.errors import UnavailableError

if TYPE_CHECKING:
    from headrace.api.plans import Chunks

OPERATION_TIMEOUT_S = 120.0
"""How long `until` waits for an operation in the background."""

POLL_FIRST_S = 0.05
POLL_MAX_S = 1.0

T = TypeVar("T")


async def until(what: str, look: Callable[[], Awaitable[T]], done: Callable[[T], bool]) -> T:
    """Calls `look` until `done` accepts its result, and returns that. Errors of `look` are not caught.

    Raises:
        UnavailableError: `done` accepts no result within OPERATION_TIMEOUT_S.
    """
    now_s = asyncio.get_running_loop().time
    poll_s, deadline_s = POLL_FIRST_S, now_s() + OPERATION_TIMEOUT_S
    while not done(seen := await look()):
        if now_s() + poll_s > deadline_s:
            raise UnavailableError(
                f"{what} has not finished after {OPERATION_TIMEOUT_S:g} s; it continues in the background"
            )
        await asyncio.sleep(poll_s)
        poll_s = min(poll_s * 1.5, POLL_MAX_S)
    return seen


async def items_of_pages(
    api: HttpApi, path: str, name: str, read: Callable[[Any], T], query: Mapping[str, str | int] | None = None
) -> AsyncIterator[T]:
    """Yields the elements of the array `name` of all pages of a list, each parsed with `read`."""
    asked = dict(query or {})
    while True:
        answer = await api.request("GET", path, query=asked or None)
        page = parsed(lambda fields: Listing.from_json(fields, name, read), answer)
        for item in page.items:
            yield item
        if page.next_after is None:
            return
        asked["continuationToken"] = page.next_after


async def chunks_of_segment(
    api: HttpApi, stream_path: str, segment_id: int, *, from_offset: int, to_offset: int, limit: int
) -> Chunks:
    """Links to the bytes `[from_offset, to_offset)` of a segment in S3. Reader groups have a stream for their state."""
    from headrace.api.plans import Chunks

    query = {"from": from_offset, "to": to_offset, "limit": limit}
    return parsed(
        Chunks.from_json, await api.request("GET", f"{stream_path}/segments/{segment_id}/chunks", query=query)
    )

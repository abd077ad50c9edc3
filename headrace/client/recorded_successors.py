"""What follows a sealed segment, once the controller has recorded it."""

from __future__ import annotations

from headrace.api.segments import Successors
from headrace.client.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.model.errors import UnavailableError


async def recorded_successors(
    admin: AsyncAdmin, scope: str, stream: str, segment_id: int, backoff: Backoff
) -> Successors:
    """Waits until a sealed segment has successors, or until the stream is sealed and has none.

    Raises:
        NotFoundError: the stream was deleted.
        UnavailableError: the controller has recorded neither for as long as `backoff` allows.
    """
    while True:
        found = await admin.successors(scope, stream, segment_id, as_recorded=True)
        if found.segments or found.sealed:
            return found
        # The stream is being sealed: the store has sealed the segment, and the controller has not recorded it yet.
        await backoff.wait(UnavailableError(f"segment {segment_id} is sealed but has no successors yet: repeat later"))

"""What follows a sealed segment, once the controller has recorded it."""

from __future__ import annotations

from headrace.api.segments import Successors
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.model.errors import HeadraceError, UnavailableError


async def recorded_successors(
    admin: AsyncAdmin, scope: str, stream: str, segment_id: int, backoff: Backoff, *, repeats: bool = True
) -> Successors:
    """Waits until a sealed segment has successors, or until the stream is sealed and has none.

    `repeats` is whether it also waits for a controller that does not answer; otherwise that is an error at once.

    Raises:
        NotFoundError: the stream was deleted.
        UnavailableError: the controller has recorded neither, or not answered, for as long as `backoff` allows.
    """
    while True:
        try:
            found = await admin.successors(scope, stream, segment_id, as_recorded=True)
        except HeadraceError as problem:
            if problem.retry == "never" or not repeats:
                raise
            await backoff.wait(problem)  # the controller is away for longer than one request is repeated
            continue
        if found.segments or found.sealed:
            return found
        # The stream is being sealed: the store has sealed the segment, and the controller has not recorded it yet.
        await backoff.wait(UnavailableError(f"segment {segment_id} is sealed but has no successors yet: repeat later"))

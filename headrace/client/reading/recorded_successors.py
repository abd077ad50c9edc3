"""What follows a sealed segment, once the controller has recorded it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from headrace.api.segments import Successors
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import FIRST_WAIT_S, Backoff
from headrace.model.backoff import doubled_pause, half_jitter
from headrace.model.errors import FrozenError, HeadraceError, TruncatedError, UnavailableError
from headrace.model.names import segment_name

FROZEN_WAIT_S_MAX = 10.0
"""The longest pause between two questions whether a stream is still frozen. A freeze may take hours."""


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


async def after_freeze(find: Callable[[], Awaitable[Successors]], backoff: Backoff) -> Successors:
    """What follows a segment, as `find` returns it. Waits for any time while the stream is frozen.

    `backoff` is that of `find`: the controller has answered, so the time in which it must do so begins again.
    """
    questions = 0
    while True:
        try:
            return await find()
        except FrozenError:
            backoff.progress()
        questions += 1
        await asyncio.sleep(half_jitter(doubled_pause(questions, FIRST_WAIT_S, FROZEN_WAIT_S_MAX), random.random()))


async def truncated_length(admin: AsyncAdmin, scope: str, stream: str, segment_id: int) -> int | None:
    """The bytes that a segment had which a truncation has deleted; None if the controller does not say so."""
    try:
        return (await admin.successors(scope, stream, segment_id, as_recorded=True)).truncated_length
    except HeadraceError:
        return None  # the caller has an error of its own


async def sealed_length_behind(admin: AsyncAdmin, scope: str, stream: str, segment_id: int, offset: int) -> int | None:
    """The bytes of a sealed segment of which S3 has nothing at `offset`; None if it may still grow.

    Raises:
        TruncatedError: the segment was deleted, or these bytes were truncated. S3 lists neither, and will not.
    """
    length = await admin.sealed_length(scope, stream, segment_id)
    if length is not None and offset < length:
        head = (await admin.stream_cut(scope, stream, at="earliest")).offsets.get(segment_id, 0)
        if offset < head:
            raise TruncatedError(
                f"segment {segment_name(scope, stream, segment_id)} starts at {head}: the bytes at {offset} were "
                "truncated",
                details={"startOffset": head},
            )
    return length

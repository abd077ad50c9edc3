"""Places of a stream as the callers of the client name them, and the stream cuts there."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta

from headrace.adapters.system_clock import local_now
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.administration.ends import current_end
from headrace.client.ranges.time_cuts import stream_cut_at
from headrace.codec.places import OLD_ENDS, End, parse_place
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut

Place = str | datetime | timedelta | StreamCut
"""Where a reader begins or ends.

A text is `earliest`, `latest`, a time of day of this machine (`10:05`), a time before now (`-5m`), a date and time of
ISO 8601, or a stream cut. A `datetime` has a time zone. A `timedelta` is so long before now.
"""


async def end_or_cut(
    admin: AsyncAdmin, scope: str, stream: str, place: Place, *, asks_stores: bool = True
) -> End | StreamCut:
    """An end of the stream as it is, and for any other place its stream cut. Only that of a time `asks_stores`.

    Raises:
        InvalidRequestError: the text is none of a place, a time has no time zone, or may not be asked for.
        NotFoundError: there is no such stream.
        UnavailableError: a segment's store could not be reached for too long.
    """
    if isinstance(place, str):
        old = place.lower()
        if old in OLD_ENDS:
            return current_end("head" if old == "head" else "tail")
        parsed = parse_place(place, local_now(), _warn)
        if isinstance(parsed, str):
            return parsed
        place = StreamCut.of(scope, stream, parsed) if isinstance(parsed, dict) else parsed
    if isinstance(place, timedelta):
        place = _before_now(place)
    if not isinstance(place, datetime):
        return place
    if not asks_stores:
        raise InvalidRequestError(
            f"only the segment stores know where {place.isoformat()} is: a reader from S3 begins and ends at "
            "`earliest`, `latest` or a stream cut"
        )
    return await stream_cut_at(admin, scope, stream, place)


async def cut_of_place(
    admin: AsyncAdmin, scope: str, stream: str, place: Place, *, asks_stores: bool = True
) -> StreamCut:
    """The stream cut at a place. Raises the errors of `end_or_cut`."""
    end = await end_or_cut(admin, scope, stream, place, asks_stores=asks_stores)
    return end if isinstance(end, StreamCut) else await admin.stream_cut(scope, stream, at=end)


def _before_now(duration: timedelta) -> datetime:
    try:
        return datetime.now(UTC) - abs(duration)
    except OverflowError:
        raise InvalidRequestError(f"{duration} before now is not a time that a calendar has") from None


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=2)

"""Writes an event to each container and reads it again, through the client. The doctor and the canary do so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from headrace.api.segments import StartedSegment
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.routing import routing_key_position
from headrace.ports.clock import Clock
from headrace.topology import CANARY_SCOPE

if TYPE_CHECKING:
    from headrace.client import AsyncEventWriter, AsyncHeadrace, SegmentRange
    from headrace.client.single_segment.segment_requests import SegmentRequests

SCOPE: Final = CANARY_SCOPE
"""Of the streams that events are written to."""
AT_ONCE_MAX: Final = 64
CLOSE_S: Final = 2.0
"""For the end of the writer, in addition to the limit of all."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`seconds` from the write of an event until it was read. `error`: why it did not come back; empty if it did."""

    seconds: float = 0.0
    error: str = ""


async def round_trips(
    client: AsyncHeadrace,
    scope: str,
    stream: str,
    segments: Mapping[int, StartedSegment],
    *,
    mark: str,
    limit_s: float,
    clock: Clock,
) -> dict[int, RoundTrip]:
    """Tries all containers, of each the given segment; all end within `limit_s` and some seconds for closing.

    The events begin with `mark`, which no other event of the stream may have. A container that fails delays and hides
    no other. The seconds are those of a client without connections.

    Raises:
        HeadraceError: the controller does not answer about the stream, or not within `limit_s`.
    """
    # Not from the package, which imports its names late: a bundle of functions would lack their modules.
    from headrace.client.segment_connections import SegmentConnections
    from headrace.client.single_segment.segment_requests import SegmentRequests
    from headrace.client.writing.event_writer import WriterOptions

    deadline_s = asyncio.get_running_loop().time() + limit_s
    # A writer fails as a whole when one segment does not answer for so long: the deadline must come first.
    options = WriterOptions(give_up_after_s=2 * limit_s)
    try:
        async with asyncio.timeout_at(deadline_s):
            writer = await client.writer(scope, stream, options)
    except TimeoutError as error:
        raise UnavailableError(f"it did not answer within {limit_s:g} s") from error
    connections = SegmentConnections(client.admin, scope, stream)
    trips = _Trips(client, scope, stream, writer, SegmentRequests(connections, limit_s), mark, clock)
    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def tried(container: int, segment: StartedSegment) -> RoundTrip:
        try:
            async with asyncio.timeout_at(deadline_s), turns:
                return await trips.try_segment(container, segment)
        except TimeoutError:
            return RoundTrip(error=f"the event was not acknowledged and read within {limit_s:g} s")
        except HeadraceError as error:
            return RoundTrip(error=error.message)
        except Exception as error:  # noqa: BLE001 - a defect at one container hides no other
            return RoundTrip(error=repr(error))

    try:
        results = await asyncio.gather(*(tried(container, segment) for container, segment in segments.items()))
    finally:
        with suppress(HeadraceError, TimeoutError):  # the acknowledgements have said it
            async with asyncio.timeout(CLOSE_S):
                await writer.close()
        await connections.close()
    return dict(zip(segments, results, strict=True))


def routing_key(segment: StartedSegment) -> str:
    """A key whose events go to the segment."""
    keys: Iterator[str] = (f"key-{number}" for number in count())
    return next(key for key in keys if segment.low <= routing_key_position(key) < segment.high)


@dataclass(frozen=True, slots=True)
class _Trips:
    client: AsyncHeadrace
    scope: str
    stream: str
    writer: AsyncEventWriter
    requests: SegmentRequests
    mark: str
    clock: Clock

    async def try_segment(self, container: int, segment: StartedSegment) -> RoundTrip:
        """Asks its store only: a list of ranges would fail for all if one store is away."""
        from headrace.client.ranges.segment_ranges import SegmentRange

        event = f"{self.mark} {container}".encode()
        start = (await self.requests.segment_info(segment.segment_id, segment.name)).write_offset
        begun_s = self.clock.monotonic_s()
        await (await self.writer.write(event, routing_key(segment)))
        end = (await self.requests.segment_info(segment.segment_id, segment.name)).write_offset
        part = SegmentRange(self.scope, self.stream, segment.segment_id, segment.low, segment.high, start, end)
        events = await read_events(self.client, part)
        if event not in events:
            return RoundTrip(error=f"it was acknowledged, and is not among the {len(events)} events that came back")
        return RoundTrip(self.clock.monotonic_s() - begun_s)


async def read_events(client: AsyncHeadrace, part: SegmentRange) -> list[bytes]:
    """The events of a range, from its store."""
    async with client.range_reader(part, read_history_from="segment_store") as reader:
        return [read.event async for read in reader]

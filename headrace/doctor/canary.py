"""The canary: an event a minute to each container, through the client, into streams that it makes for itself.

A stream has as many segments as it takes for each container of its class of logs to have one. They stay, so that a call
begins no operation. Retention removes old events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from headrace.api.segments import StartedSegment
from headrace.doctor.round_trips import SCOPE, RoundTrip, round_trips
from headrace.model.errors import HeadraceError, NotFoundError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.log_classes import ContainerLayout, LogClass
from headrace.model.names import segment_name
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration
from headrace.model.streams import new_stream
from headrace.ports.clock import Clock

if TYPE_CHECKING:
    from headrace.client import AsyncHeadrace

STREAMS: Final[Mapping[LogClass, str]] = {LogClass.STORES: "canary", LogClass.S3: "canary-s3"}
RETENTION: Final = RetentionPolicy.by_time(3_600_000)


async def try_containers(
    client: AsyncHeadrace, layout: ContainerLayout, *, mark: str, limit_s: float, clock: Clock
) -> dict[int, RoundTrip]:
    """The round trips of all containers that have a segment, by their numbers. They end within about `limit_s`.

    `mark` is another one at each call. If the controller does not answer, all containers have failed: a client without
    connections could not write either.
    """
    classes = [LogClass.STORES, *([LogClass.S3] if layout.s3_containers else [])]

    async def tried(log_class: LogClass) -> dict[int, RoundTrip]:
        try:
            async with asyncio.timeout(limit_s / 2):
                segments = await _segments(client, layout, log_class)
            reached = by_container(layout, segments)
            trips = await round_trips(
                client, SCOPE, STREAMS[log_class], reached, mark=mark, limit_s=limit_s / 2, clock=clock
            )
            return trips if len(segments) == SEGMENTS_PER_STREAM_MAX else without_segment(log_class) | trips
        except (HeadraceError, TimeoutError) as error:
            reason = error.message if isinstance(error, HeadraceError) else f"no answer within {limit_s / 2:g} s"
            return {
                container: RoundTrip(error=f"the controller: {reason}")
                for container in range(layout.count)
                if layout.class_of(container) is log_class
            }

    def without_segment(log_class: LogClass) -> dict[int, RoundTrip]:
        """What containers get that the stream does not reach although it may have more segments: it was changed."""
        name = f"{SCOPE}/{STREAMS[log_class]}"
        trip = RoundTrip(error=f"no segment of {name} is in it: delete this stream, which the next call makes again")
        return {each: trip for each in range(layout.count) if layout.class_of(each) is log_class}

    by_class = await asyncio.gather(*map(tried, classes))
    return {container: trip for trips in by_class for container, trip in trips.items()}


async def _segments(client: AsyncHeadrace, layout: ContainerLayout, log_class: LogClass) -> Sequence[StartedSegment]:
    """The segments of the stream of the class, which is created if it is not there."""
    stream = STREAMS[log_class]
    try:
        segments = await client.admin.segments(SCOPE, stream)
    except NotFoundError:
        await client.admin.create_scope(SCOPE, exist_ok=True)
        await client.admin.create_stream(
            SCOPE,
            stream,
            scaling=ScalingPolicy.fixed(segments_needed(layout, log_class)),
            retention=RETENTION,
            acknowledged_by=log_class,
            exist_ok=True,
        )
        segments = await client.admin.segments(SCOPE, stream)
    return segments


def by_container(layout: ContainerLayout, segments: Iterable[StartedSegment]) -> dict[int, StartedSegment]:
    """The first segment of each container, in the order of the containers."""
    first_segments: dict[int, StartedSegment] = {}
    for segment in segments:
        first_segments.setdefault(layout.container_of_segment(segment.name), segment)
    return dict(sorted(first_segments.items()))


def segments_needed(layout: ContainerLayout, log_class: LogClass) -> int:
    """How many segments the stream of a class needs; at most those of a stream, which reach 190 containers or so."""
    policy = StreamConfiguration(ScalingPolicy.fixed(SEGMENTS_PER_STREAM_MAX), log_class=log_class)
    missing = {container for container in range(layout.count) if layout.class_of(container) is log_class}
    stream = new_stream(SCOPE, STREAMS[log_class], policy, 0, 0)
    for number, segment in enumerate(stream.epoch.segments, start=1):
        missing.discard(layout.container_of_segment(segment_name(SCOPE, stream.name, segment.segment_id)))
        if not missing:
            return number
    return SEGMENTS_PER_STREAM_MAX

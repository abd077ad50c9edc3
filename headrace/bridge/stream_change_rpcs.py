"""The rpcs that change a stream in place: update its configuration, truncate it; and whether a stream cut is valid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.api.streams import StreamView
from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.waiting import Waits
from headrace.controller.services.stream_cut_service import StreamCutService
from headrace.controller.services.stream_service import StreamService
from headrace.controller.services.watermark_service import MarkStreamService, WatermarkService
from headrace.model.errors import TruncatedError, UnavailableError
from headrace.model.names import stream_of_mark_stream
from headrace.model.requests import RequestKind
from headrace.model.stream_state import StreamState

# The rpcs of watermarks: notes of writers, and the mark streams in which clients read watermarks.
#
# A mark stream has no record. So this module answers requests for the segments of a mark stream, and passes requests
# for other streams on.


class WatermarkRpcs:
    """The rpcs of watermarks; `streams` are the rpcs for all other streams."""

    def __init__(
        self, watermarks: WatermarkService, mark_streams: MarkStreamService, streams: Mapping[str, Rpc]
    ) -> None:
        self._watermarks = watermarks
        self._mark_streams = mark_streams
        self._streams = streams

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {
            "noteTimestampFromWriter": self.note_timestamp,
            "removeWriter": self.remove_writer,
            "getCurrentSegments": self.current_segments,
            "getEpochSegments": self.epoch_segments,
            "getSegments": self.head_segments,
        }

    def note_timestamp(self, request: pb.TimestampFromWriter) -> pb.TimestampResponse:
        scope, stream = messages.known_stream(request.position.streamInfo)
        self._watermarks.note_position(scope, stream, request.writer, request.timestamp, dict(request.position.cut))
        return pb.TimestampResponse(result=pb.TimestampResponse.SUCCESS)

    def remove_writer(self, request: pb.RemoveWriterRequest) -> pb.RemoveWriterResponse:
        self._watermarks.remove_writer(*messages.known_stream(request.stream), request.writer)
        return pb.RemoveWriterResponse(result=pb.RemoveWriterResponse.SUCCESS)

    def current_segments(self, request: pb.StreamInfo) -> Any:
        marked = stream_of_mark_stream(request.stream)
        return self._streams["getCurrentSegments"](request) if marked is None else self._ranges(request, marked)

    def epoch_segments(self, request: pb.GetEpochSegmentsRequest) -> Any:
        marked = stream_of_mark_stream(request.streamInfo.stream)
        if marked is None:
            return self._streams["getEpochSegments"](request)
        return self._ranges(request.streamInfo, marked)

    def head_segments(self, request: pb.GetSegmentsRequest) -> Any:
        info = request.streamInfo
        marked = stream_of_mark_stream(info.stream)
        if marked is None:
            return self._streams["getSegments"](request)
        messages.known_stream(info)
        head = self._mark_streams.segments(info.scope, marked)
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(
                    segmentId=messages.segment_id_message(info.scope, info.stream, segment.segment_id),
                    offset=segment.start_offset,
                )
                for segment in head.segments
            ]
        )

    def _ranges(self, info: pb.StreamInfo, marked: str) -> pb.SegmentRanges:
        """A mark stream has one epoch and never ends before its stream."""
        messages.known_stream(info)
        tail = self._mark_streams.segments(info.scope, marked)
        return messages.segment_ranges_message(info.scope, info.stream, tail.segments)


Rpc = Callable[[Any], Any | Awaitable[Any]]


class StreamChangeRpcs:
    """The rpcs return when the change is complete, as Pravega's clients expect."""

    def __init__(self, streams: StreamService, cuts: StreamCutService, waits: Waits) -> None:
        self._streams = streams
        self._cuts = cuts
        self._waits = waits

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {
            "updateStream": self.update_stream,
            "truncateStream": self.truncate_stream,
            "isStreamCutValid": self.is_stream_cut_valid,
        }

    async def update_stream(self, request: pb.StreamConfig) -> pb.UpdateStreamStatus:
        """Return when the whole configuration is replaced and the changes that follow from it are complete."""
        scope, stream = messages.known_stream(request.streamInfo)
        configuration, log_class = messages.configuration_of(request), messages.log_class_of(request)
        what = f"updating stream {scope}/{stream}"
        accepted = await self._waits.accepted(
            what, lambda: self._streams.update_stream(scope, stream, configuration, log_class=log_class)
        )
        seen: list[StreamView] = []

        def look() -> StreamView:
            seen[:] = [self._streams.get_stream(scope, stream)]
            return seen[0]

        await self._waits.until(what, look, lambda view: not view.state.runs(RequestKind.UPDATE_STREAM))
        if seen[0].configuration_version < accepted.configuration_version:
            raise UnavailableError(f"{what} was rolled back: repeat")
        return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)

    async def truncate_stream(self, request: pb.StreamCut) -> pb.UpdateStreamStatus:
        """Return when all bytes before the cut are truncated, also if they were truncated before the call."""
        scope, stream = messages.known_stream(request.streamInfo)
        cut = dict(request.cut)
        what = f"truncating stream {scope}/{stream}"

        def attempt() -> StreamState:
            self._cuts.check_reached(scope, stream, cut)
            return self._streams.truncate_stream(scope, stream, cut).state

        state = await self._waits.accepted(what, attempt)
        while state.runs(RequestKind.TRUNCATE_STREAM):
            await self._waits.until(
                what,
                lambda: self._streams.get_stream(scope, stream),
                lambda view: not view.state.runs(RequestKind.TRUNCATE_STREAM),
            )
            try:
                # If the cut is the head already, this changes nothing. If the truncation was rolled back, it restarts.
                state = await self._waits.accepted(what, attempt)
            except TruncatedError:
                break  # Another client has truncated the stream further meanwhile.
        return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)

    def is_stream_cut_valid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        scope, stream = messages.known_stream(request.streamInfo)
        return pb.StreamCutValidityResponse(response=self._cuts.is_valid(scope, stream, dict(request.cut)))

"""The rpcs of watermarks: notes of writers, and the mark streams in which clients read watermarks.

A mark stream has no record. So this module answers requests for the segments of a mark stream, and passes requests for
other streams on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.controller.services.mark_streams import MarkStreamService
from headrace.controller.services.watermarks import WatermarkService
from headrace.model.names import stream_of_mark_stream

Rpc = Callable[[Any], Any | Awaitable[Any]]


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
        found = self._mark_streams.segments(info.scope, marked)
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(
                    segmentId=messages.segment_id_message(info.scope, info.stream, one.segment_id),
                    offset=one.start_offset,
                )
                for one in found.segments
            ]
        )

    def _ranges(self, info: pb.StreamInfo, marked: str) -> pb.SegmentRanges:
        """A mark stream has one epoch and never ends before its stream."""
        messages.known_stream(info)
        found = self._mark_streams.segments(info.scope, marked)
        return messages.segment_ranges_message(info.scope, info.stream, found.segments)

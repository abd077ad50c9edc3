"""Segments over HTTP: at some point of a stream, around a segment, between stream cuts, and where one is served."""

from __future__ import annotations

from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller import models_segments as models
from functions.controller.parameters import ScopeName, SegmentId, StreamName, decimal
from functions.http_api import http_api, lambda_handler
from headrace.api.segments import EpochSegments, Predecessors
from headrace.api.stream_cuts import stream_cut_json
from headrace.model.errors import InvalidRequestError

api = http_api()

TIME_MS_MAX = (1 << 63) - 1

At = Annotated[str | None, Query(description="head, tail (default), or a time in milliseconds since 1970")]
OfEpoch = Annotated[int | None, Query(ge=0, lt=1 << 31, description="Number of an epoch, instead of `at`")]
AsRecorded = Annotated[
    bool, Query(description="Also of a segment that is truncated: for readers and writers that were in it")
]
CutAt = Annotated[Literal["head", "tail"], Query(description="Which end of the stream")]

_SEGMENTS = "/v1/scopes/<scope>/streams/<stream>/segments"


@api.get(_SEGMENTS, summary="Segments at the head, the tail, a time or of an epoch", tags=["Segments"])
def list_segments(scope: ScopeName, stream: StreamName, at: At = None, epoch: OfEpoch = None) -> models.SegmentList:
    if epoch is not None and at is not None:
        raise InvalidRequestError("ask for the segments at a point or of an epoch, not for both")
    if epoch is not None:
        return models.SegmentList.from_value(wiring.segment_service().segments_of_epoch(scope, stream, epoch))
    return models.SegmentList.from_value(_segments_at(scope, stream, at or "tail"))


def _segments_at(scope: str, stream: str, at: str) -> EpochSegments:
    if at == "head":
        return wiring.segment_service().segments_at_head(scope, stream)
    if at == "tail":
        return wiring.segment_service().segments_at_tail(scope, stream)
    return wiring.segment_service().segments_at_time(scope, stream, decimal(at, "point of a stream", TIME_MS_MAX))


@api.post(f"{_SEGMENTS}/between", summary="Exactly the bytes between two stream cuts", tags=["Segments"])
def segments_between(scope: ScopeName, stream: StreamName, request: models.BetweenRequest) -> models.Between:
    start, end = models.offsets("from", request.from_), models.offsets("to", request.to)
    return models.Between.from_value(wiring.segment_service().between(scope, stream, start, end))


@api.get(f"{_SEGMENTS}/<segment>/successors", summary="What follows a sealed segment", tags=["Segments"])
def successors(
    scope: ScopeName, stream: StreamName, segment: SegmentId, asRecorded: AsRecorded = False
) -> models.SuccessorList:
    found = wiring.segment_service().successors(scope, stream, int(segment), as_recorded=asRecorded)
    return models.SuccessorList.from_value(found)


@api.get(f"{_SEGMENTS}/<segment>/predecessors", summary="What a segment follows", tags=["Segments"])
def predecessors(scope: ScopeName, stream: StreamName, segment: SegmentId) -> models.PredecessorList:
    found = wiring.segment_service().predecessors(scope, stream, int(segment))
    return models.PredecessorList.from_value(Predecessors(found))


@api.get(f"{_SEGMENTS}/<segment>/endpoint", summary="The segment store that serves a segment", tags=["Segments"])
def endpoint(scope: ScopeName, stream: StreamName, segment: SegmentId) -> models.Endpoint:
    return models.Endpoint.from_value(wiring.segment_service().endpoint_of_known(scope, stream, int(segment)))


@api.get("/v1/scopes/<scope>/streams/<stream>/stream-cut", summary="The cut at an end", tags=["Segments"])
def stream_cut(scope: ScopeName, stream: StreamName, at: CutAt = "tail") -> models.StreamCutModel:
    return models.StreamCutModel.model_validate(stream_cut_json(wiring.segment_service().stream_cut(scope, stream, at)))


handler = lambda_handler(api)

"""Segments over HTTP: at some point of a stream, around a segment, between stream cuts, and where one is served."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from functions import wiring
from functions.controller.parameters import TIME_MS_MAX, NetworkOfClient, ScopeName, SegmentId, StreamName, network_of
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.segments import EpochSegments, Predecessors, RangesBetween, SegmentEndpoint, Successors
from headrace.api.stream_cuts import BetweenRequest, StreamCutView, decimal, requested_offsets
from headrace.api.trust import TrustView
from headrace.model.errors import InvalidRequestError

api = HttpApi()

At = Annotated[
    str | None,
    QueryParameter("earliest, latest (default; head and tail are old words), or a time in milliseconds since 1970"),
]
OfEpoch = Annotated[
    Annotated[int, Meta(ge=0, lt=1 << 31)] | None, QueryParameter("Number of an epoch, instead of `at`")
]
AsRecorded = Annotated[
    bool, QueryParameter("Also of a segment that is truncated: for readers and writers that were in it", "asRecorded")
]
CutAt = Annotated[
    Literal["earliest", "latest", "head", "tail"],
    QueryParameter("Which end of the stream. `head` and `tail` are the old words"),
]

_SEGMENTS = "/v1/scopes/<scope>/streams/<stream>/segments"


@api.route("GET", _SEGMENTS, summary="Segments at the head, the tail, a time or of an epoch", tag="Segments")
def list_segments(scope: ScopeName, stream: StreamName, at: At = None, epoch: OfEpoch = None) -> EpochSegments:
    if epoch is not None and at is not None:
        raise InvalidRequestError("ask for the segments at a point or of an epoch, not for both")
    if epoch is not None:
        return wiring.segment_service().segments_of_epoch(scope, stream, epoch)
    return _segments_at(scope, stream, at or "latest")


def _segments_at(scope: str, stream: str, at: str) -> EpochSegments:
    if at in ("earliest", "head"):
        return wiring.segment_service().segments_at_head(scope, stream)
    if at in ("latest", "tail"):
        return wiring.segment_service().segments_at_tail(scope, stream)
    return wiring.segment_service().segments_at_time(scope, stream, decimal(at, "point of a stream", TIME_MS_MAX))


@api.route("POST", f"{_SEGMENTS}/between", summary="Exactly the bytes between two stream cuts", tag="Segments")
def segments_between(scope: ScopeName, stream: StreamName, request: BetweenRequest) -> RangesBetween:
    start, end = requested_offsets("from", request.start), requested_offsets("to", request.end)
    return wiring.segment_service().between(scope, stream, start, end)


@api.route("GET", f"{_SEGMENTS}/<segment>/successors", summary="What follows a sealed segment", tag="Segments")
def successors(scope: ScopeName, stream: StreamName, segment: SegmentId, as_recorded: AsRecorded = False) -> Successors:
    return wiring.segment_service().successors(scope, stream, segment, as_recorded=as_recorded)


@api.route("GET", f"{_SEGMENTS}/<segment>/predecessors", summary="What a segment follows", tag="Segments")
def predecessors(scope: ScopeName, stream: StreamName, segment: SegmentId) -> Predecessors:
    return Predecessors(wiring.segment_service().predecessors(scope, stream, segment))


@api.route("GET", f"{_SEGMENTS}/<segment>/endpoint", summary="The segment store that serves a segment", tag="Segments")
def endpoint(
    scope: ScopeName, stream: StreamName, segment: SegmentId, network: NetworkOfClient = "vpc"
) -> SegmentEndpoint:
    return wiring.segment_service().endpoint_of_known(scope, stream, segment, network_of(network))


@api.route("GET", "/v1/trust", summary="The authorities that have issued the stores' certificates", tag="Segments")
def trust() -> TrustView:
    return wiring.segment_service().trust()


@api.route("GET", "/v1/scopes/<scope>/streams/<stream>/stream-cut", summary="The cut at an end", tag="Segments")
def stream_cut(scope: ScopeName, stream: StreamName, at: CutAt = "latest") -> StreamCutView:
    return StreamCutView.of(
        wiring.segment_service().stream_cut(scope, stream, "head" if at in ("earliest", "head") else "tail")
    )


handler = lambda_handler(api)

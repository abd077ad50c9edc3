"""Stream cuts over HTTP: truncate a stream at one, check one, measure between two."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from functions import wiring
from functions.controller.parameters import ScopeName, StreamName
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.stream_cuts import (
    BetweenRequest,
    CutCheck,
    CutDistance,
    CutRequest,
    ExplainedCutCheck,
    requested_offsets,
)
from headrace.api.streams import StreamStateAnswer

api = HttpApi()

_STREAM = "/v1/scopes/<scope>/streams/<stream>"

Explain = Annotated[bool, QueryParameter("Also say why the cut is not valid")]


@api.route("POST", f"{_STREAM}/truncate", summary="Truncate at a cut", tag="Stream cuts", status=HTTPStatus.ACCEPTED)
def truncate_stream(scope: ScopeName, stream: StreamName, request: CutRequest) -> StreamStateAnswer:
    cut = request.offsets()
    wiring.stream_cut_service().check_reached(scope, stream, cut)
    view = wiring.stream_service().truncate_stream(scope, stream, cut)
    return StreamStateAnswer(view.state)


@api.route("POST", f"{_STREAM}/stream-cuts/check", summary="Whether a cut is valid", tag="Stream cuts")
def check_stream_cut(
    scope: ScopeName, stream: StreamName, request: CutRequest, explain: Explain = False
) -> CutCheck | ExplainedCutCheck:
    problem = wiring.stream_cut_service().problem(scope, stream, request.offsets())
    if not explain:
        return CutCheck(problem is None)
    return ExplainedCutCheck.of(problem)


@api.route("POST", f"{_STREAM}/stream-cuts/distance", summary="How many bytes lie between", tag="Stream cuts")
def stream_cut_distance(scope: ScopeName, stream: StreamName, request: BetweenRequest) -> CutDistance:
    start, end = requested_offsets("from", request.start), requested_offsets("to", request.end)
    return CutDistance(wiring.stream_cut_service().distance_bytes(scope, stream, start, end))


handler = lambda_handler(api)

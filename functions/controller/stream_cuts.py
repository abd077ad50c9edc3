"""Stream cuts over HTTP: truncate a stream at one, check one, measure between two."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller import models_stream_cuts as models
from functions.controller.models_segments import BetweenRequest, offsets
from functions.controller.models_streams import StreamStateAnswer
from functions.controller.parameters import ScopeName, StreamName
from functions.http_api import http_api, lambda_handler
from headrace.api.stream_cuts import cut_check_json

api = http_api()

_STREAM = "/v1/scopes/<scope>/streams/<stream>"

Explain = Annotated[bool, Query(description="Also say why the cut is not valid")]


@api.post(f"{_STREAM}/truncate", summary="Truncate at a cut", tags=["Stream cuts"], status_code=HTTPStatus.ACCEPTED)
def truncate_stream(scope: ScopeName, stream: StreamName, request: models.CutRequest) -> StreamStateAnswer:
    cut = request.offsets()
    wiring.stream_cut_service().check_reached(scope, stream, cut)
    view = wiring.stream_service().truncate_stream(scope, stream, cut)
    return StreamStateAnswer(streamState=view.state.value)


@api.post(f"{_STREAM}/stream-cuts/check", summary="Whether a cut is valid", tags=["Stream cuts"])
def check_stream_cut(
    scope: ScopeName, stream: StreamName, request: models.CutRequest, explain: Explain = False
) -> models.CutCheck | models.ExplainedCutCheck:
    problem = wiring.stream_cut_service().problem(scope, stream, request.offsets())
    if not explain:
        return models.CutCheck(valid=problem is None)
    return models.ExplainedCutCheck.model_validate(cut_check_json(problem))


@api.post(f"{_STREAM}/stream-cuts/distance", summary="How many bytes lie between", tags=["Stream cuts"])
def stream_cut_distance(scope: ScopeName, stream: StreamName, request: BetweenRequest) -> models.CutDistance:
    start, end = offsets("from", request.from_), offsets("to", request.to)
    return models.CutDistance(bytes=wiring.stream_cut_service().distance_bytes(scope, stream, start, end))


handler = lambda_handler(api)

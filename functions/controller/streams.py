"""Streams over HTTP: create, get, list, scale, seal, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller import models_streams as models
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    EpochNumber,
    PageLimit,
    ScopeName,
    StreamName,
    continue_after,
)
from functions.http_api import http_api, lambda_handler
from headrace.model.errors import InvalidRequestError

api = http_api()

TagFilter = Annotated[str | None, Query(description="Only streams that carry this tag")]
FilterType = Annotated[Literal["tag"] | None, Query(description="Pravega's spelling of the tag filter")]
FilterValue = Annotated[str | None, Query(description="The tag, with filter_type=tag")]

_STREAMS = "/v1/scopes/<scope>/streams"
_STREAM = f"{_STREAMS}/<stream>"


@api.get(_STREAMS, summary="List the streams of a scope by name", tags=["Streams"])
def list_streams(
    scope: ScopeName,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
    continuationToken: ContinuationToken = None,
    tag: TagFilter = None,
    filter_type: FilterType = None,
    filter_value: FilterValue = None,
) -> models.StreamList:
    if (filter_type is None) != (filter_value is None) or (filter_type and tag is not None):
        raise InvalidRequestError("filter by tag=... or by filter_type=tag and filter_value=..., not by half or both")
    wanted = filter_value if filter_type else tag
    page = wiring.stream_service().list_streams(scope, limit, continue_after(continuationToken), tag=wanted)
    return models.stream_list(page)


@api.post(_STREAMS, summary="Create a stream", tags=["Streams"], status_code=HTTPStatus.CREATED)
def create_stream(scope: ScopeName, request: models.CreateStreamRequest) -> models.Stream:
    created = wiring.stream_service().create_stream(scope, request.streamName, request.configuration())
    return models.stream(created)


@api.get(_STREAM, summary="Get a stream", tags=["Streams"])
def get_stream(scope: ScopeName, stream: StreamName) -> models.Stream:
    return models.stream(wiring.stream_service().get_stream(scope, stream))


@api.delete(_STREAM, summary="Delete a sealed stream", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def delete_stream(scope: ScopeName, stream: StreamName) -> models.StreamDeletion:
    view = wiring.stream_service().delete_stream(scope, stream)
    return models.StreamDeletion(streamState=view.state.value, deleting=view.is_deleting)


@api.put(f"{_STREAM}/state", summary="Seal a stream", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def set_state(scope: ScopeName, stream: StreamName, request: models.StateRequest) -> models.StreamStateAnswer:
    view = wiring.stream_service().seal_stream(scope, stream)
    return models.StreamStateAnswer(streamState=view.state.value)


@api.post(f"{_STREAM}/scale", summary="Replace segments by others", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def scale_stream(scope: ScopeName, stream: StreamName, request: models.ScaleRequest) -> models.Scale:
    view = wiring.stream_service().scale_stream(scope, stream, request.sealedSegments, request.key_ranges())
    return models.scale(view)


@api.get(f"{_STREAM}/scale/<epoch>", summary="How far a scale is", tags=["Streams"])
def scale_status(scope: ScopeName, stream: StreamName, epoch: EpochNumber) -> models.ScaleState:
    number = int(epoch)
    return models.scale_state(number, wiring.stream_service().scale_status(scope, stream, number))


handler = lambda_handler(api)

"""Streams over HTTP: create, get, list, update, scale, seal and delete; and past scaling events."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller import models_scaling_events as models_scaling
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
from headrace.api.streams import ScaleProgress, StreamSummary
from headrace.controller.services.scaling_events import TIME_MS_MAX
from headrace.model.errors import InvalidRequestError
from headrace.model.log_classes import LogClass

api = http_api()

TagFilter = Annotated[str | None, Query(description="Only streams that carry this tag")]
FilterType = Annotated[Literal["tag"] | None, Query(description="Pravega's spelling of the tag filter")]
FilterValue = Annotated[str | None, Query(description="The tag, with filter_type=tag")]

Prefix = Annotated[str, Query(max_length=255, description="Only streams whose names begin so")]
FromTime = Annotated[int, Query(alias="from", ge=0, le=TIME_MS_MAX, description="Milliseconds since 1970")]
ToTime = Annotated[int, Query(alias="to", ge=0, le=TIME_MS_MAX, description="Inclusive; without: up to now")]

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
    prefix: Prefix = "",
) -> models.StreamList:
    if (filter_type is None) != (filter_value is None) or (filter_type and tag is not None):
        raise InvalidRequestError("filter either by tag=... or by both filter_type=tag and filter_value=...")
    wanted = filter_value if filter_type else tag
    page = wiring.stream_service().list_streams(scope, limit, continue_after(continuationToken), wanted, prefix)
    return models.StreamList.model_validate(page.to_json("streams", StreamSummary.to_json))


@api.post(_STREAMS, summary="Create a stream", tags=["Streams"], status_code=HTTPStatus.CREATED)
def create_stream(scope: ScopeName, request: models.CreateStreamRequest) -> models.Stream:
    created = wiring.stream_service().create_stream(scope, request.streamName, request.configuration())
    return models.Stream.from_value(created)


@api.get(_STREAM, summary="Get a stream", tags=["Streams"])
def get_stream(scope: ScopeName, stream: StreamName) -> models.Stream:
    return models.Stream.from_value(wiring.stream_service().get_stream(scope, stream))


@api.put(_STREAM, summary="Replace the configuration", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def update_stream(scope: ScopeName, stream: StreamName, request: models.UpdateStreamRequest) -> models.StreamUpdate:
    given = request.acknowledgedBy and LogClass(request.acknowledgedBy)
    view = wiring.stream_service().update_stream(
        scope, stream, request.configuration(), request.expectedConfigurationVersion, given
    )
    return models.StreamUpdate.from_value(view)


@api.delete(_STREAM, summary="Delete a sealed stream", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def delete_stream(scope: ScopeName, stream: StreamName) -> models.StreamDeletion:
    view = wiring.stream_service().delete_stream(scope, stream)
    return models.StreamDeletion(streamState=view.state.value, deleting=view.is_deleting)


@api.put(f"{_STREAM}/state", summary="Seal, freeze or unfreeze", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def set_state(scope: ScopeName, stream: StreamName, request: models.StateRequest) -> models.StreamStateAnswer:
    streams = wiring.stream_service()
    accept = {"SEALED": streams.seal_stream, "FROZEN": streams.freeze_stream, "ACTIVE": streams.unfreeze_stream}
    view = accept[request.streamState](scope, stream)
    return models.StreamStateAnswer(streamState=view.state.value)


@api.post(f"{_STREAM}/scale", summary="Replace segments by others", tags=["Streams"], status_code=HTTPStatus.ACCEPTED)
def scale_stream(scope: ScopeName, stream: StreamName, request: models.ScaleRequest) -> models.Scale:
    view = wiring.stream_service().scale_stream(scope, stream, request.sealedSegments, request.key_ranges())
    return models.Scale.from_value(view)


@api.get(f"{_STREAM}/scale/<epoch>", summary="How far a scale is", tags=["Streams"])
def scale_status(scope: ScopeName, stream: StreamName, epoch: EpochNumber) -> models.ScaleState:
    number = int(epoch)
    progress = ScaleProgress(number, wiring.stream_service().scale_status(scope, stream, number))
    return models.ScaleState.model_validate(progress.state_json())


@api.get(f"{_STREAM}/scaling-events", summary="The scales between two times", tags=["Streams"])
def scaling_events(
    scope: ScopeName,
    stream: StreamName,
    from_ms: FromTime = 0,
    to_ms: ToTime = TIME_MS_MAX,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
) -> models_scaling.ScalingEventList:
    found = wiring.scaling_event_service().scaling_events(scope, stream, from_ms, to_ms, limit)
    return models_scaling.ScalingEventList.from_value(found)


handler = lambda_handler(api)

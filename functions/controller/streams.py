"""Streams over HTTP: create, get, list, update, scale, seal and delete; and past scaling events."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta

from functions import wiring
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    EpochNumber,
    PageLimit,
    ScopeName,
    StreamName,
    continue_after,
)
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.streams import (
    CreateStreamRequest,
    EpochHistory,
    ScaleProgress,
    ScaleRequest,
    ScaleState,
    ScalingEvents,
    StateRequest,
    StreamDeletion,
    StreamList,
    StreamStateAnswer,
    StreamUpdate,
    StreamView,
    UpdateStreamRequest,
)
from headrace.controller.services.stream_service import TIME_MS_MAX
from headrace.model.errors import InvalidRequestError
from headrace.model.formats import FROZEN_STREAMS

api = HttpApi()

TagFilter = Annotated[str | None, QueryParameter("Only streams that carry this tag")]
FilterType = Annotated[Literal["tag"] | None, QueryParameter("Pravega's spelling of the tag filter")]
FilterValue = Annotated[str | None, QueryParameter("The tag, with filter_type=tag")]

Prefix = Annotated[str, Meta(max_length=255), QueryParameter("Only streams whose names begin so")]
_Time = Meta(ge=0, le=TIME_MS_MAX)
FromTime = Annotated[int, _Time, QueryParameter("Milliseconds since 1970", name="from")]
ToTime = Annotated[int, _Time, QueryParameter("Inclusive; without: up to now", name="to")]
EPOCHS_MAX = 1 << 31
BeforeEpoch = Annotated[int, Meta(ge=1, le=EPOCHS_MAX), QueryParameter("Only epochs with lower numbers; without: all")]

_STREAMS = "/v1/scopes/<scope>/streams"
_STREAM = f"{_STREAMS}/<stream>"


@api.route("GET", _STREAMS, summary="List the streams of a scope by name", tag="Streams")
def list_streams(
    scope: ScopeName,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
    continuation_token: ContinuationToken = None,
    tag: TagFilter = None,
    filter_type: FilterType = None,
    filter_value: FilterValue = None,
    prefix: Prefix = "",
) -> StreamList:
    if (filter_type is None) != (filter_value is None) or (filter_type and tag is not None):
        raise InvalidRequestError("filter either by tag=... or by both filter_type=tag and filter_value=...")
    wanted = filter_value if filter_type else tag
    page = wiring.stream_service().list_streams(scope, limit, continue_after(continuation_token), wanted, prefix)
    return StreamList(streams=page.items, next_after=page.next_after)


@api.route("POST", _STREAMS, summary="Create a stream", tag="Streams", status=HTTPStatus.CREATED)
def create_stream(scope: ScopeName, request: CreateStreamRequest) -> StreamView:
    return wiring.stream_service().create_stream(scope, request.stream, request.configuration)


@api.route("GET", _STREAM, summary="Get a stream", tag="Streams")
def get_stream(scope: ScopeName, stream: StreamName) -> StreamView:
    return wiring.stream_service().get_stream(scope, stream)


@api.route("PUT", _STREAM, summary="Replace the configuration", tag="Streams", status=HTTPStatus.ACCEPTED)
def update_stream(scope: ScopeName, stream: StreamName, request: UpdateStreamRequest) -> StreamUpdate:
    return wiring.stream_service().update_stream(
        scope, stream, request.configuration, request.expected_configuration_version, request.log_class
    )


@api.route("DELETE", _STREAM, summary="Delete a sealed stream", tag="Streams", status=HTTPStatus.ACCEPTED)
def delete_stream(scope: ScopeName, stream: StreamName) -> StreamDeletion:
    return wiring.stream_service().delete_stream(scope, stream)


@api.route("PUT", f"{_STREAM}/state", summary="Seal, freeze or unfreeze", tag="Streams", status=HTTPStatus.ACCEPTED)
def set_state(scope: ScopeName, stream: StreamName, request: StateRequest) -> StreamStateAnswer:
    streams = wiring.stream_service()
    if request.state == "FROZEN":
        wiring.format_gate().check(FROZEN_STREAMS)
    accept = {"SEALED": streams.seal_stream, "FROZEN": streams.freeze_stream, "ACTIVE": streams.unfreeze_stream}
    return StreamStateAnswer(accept[request.state](scope, stream).state)


@api.route("POST", f"{_STREAM}/scale", summary="Replace segments by others", tag="Streams", status=HTTPStatus.ACCEPTED)
def scale_stream(scope: ScopeName, stream: StreamName, request: ScaleRequest) -> ScaleProgress:
    return wiring.stream_service().scale_stream(scope, stream, request.sealed_segments, request.key_ranges())


@api.route("GET", f"{_STREAM}/scale/<epoch>", summary="How far a scale is", tag="Streams")
def scale_status(scope: ScopeName, stream: StreamName, epoch: EpochNumber) -> ScaleState:
    return ScaleState(epoch, wiring.stream_service().scale_status(scope, stream, epoch))


@api.route("GET", f"{_STREAM}/scaling-events", summary="The scales between two times", tag="Streams")
def scaling_events(
    scope: ScopeName,
    stream: StreamName,
    from_ms: FromTime = 0,
    to_ms: ToTime = TIME_MS_MAX,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
) -> ScalingEvents:
    return wiring.scaling_event_service().scaling_events(scope, stream, from_ms, to_ms, limit)


@api.route("GET", f"{_STREAM}/epochs", summary="The epochs, newest first, with their segments", tag="Streams")
def epoch_history(
    scope: ScopeName, stream: StreamName, before: BeforeEpoch = EPOCHS_MAX, limit: PageLimit = PAGE_LIMIT_DEFAULT
) -> EpochHistory:
    return wiring.scaling_event_service().epoch_history(scope, stream, before, limit)


handler = lambda_handler(api)

"""Subscribers over HTTP: reader groups that retention waits for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from msgspec import Meta

from functions import wiring
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ScopeName,
    StreamName,
    path_name,
)
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.retention import (
    GENERATION_MAX,
    RegisterSubscriberRequest,
    SubscriberList,
    SubscriberPositionRequest,
    SubscriberView,
    published_offsets,
)
from headrace.model.subscribers import check_subscriber_name

api = HttpApi()


SubscriberName = Annotated[
    str,
    path_name("Name of a reader group, as `group` or `scope/group` (with %2F for the slash)", check_subscriber_name),
]
Generation = Annotated[int, Meta(ge=0, le=GENERATION_MAX), QueryParameter("Of the reader group's configuration")]

_SUBSCRIBERS = "/v1/scopes/<scope>/streams/<stream>/subscribers"
_SUBSCRIBER = f"{_SUBSCRIBERS}/<subscriber>"


@api.route("GET", _SUBSCRIBERS, summary="List subscribers", tag="Retention")
def list_subscribers(
    scope: ScopeName,
    stream: StreamName,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
    continuation_token: ContinuationToken = None,
) -> SubscriberList:
    after = check_subscriber_name(continuation_token) if continuation_token else None
    page = wiring.subscriber_service().list_subscribers(scope, stream, limit, after)
    return SubscriberList(subscribers=tuple(map(SubscriberView.of, page.items)), next_after=page.next_after)


@api.route("GET", _SUBSCRIBER, summary="How far a subscriber has read", tag="Retention")
def get_subscriber(scope: ScopeName, stream: StreamName, subscriber: SubscriberName) -> SubscriberView:
    return SubscriberView.of(wiring.subscriber_service().get_subscriber(scope, stream, subscriber))


@api.route("PUT", _SUBSCRIBER, summary="Let retention wait for a reader group", tag="Retention")
def register(
    scope: ScopeName, stream: StreamName, subscriber: SubscriberName, request: RegisterSubscriberRequest
) -> SubscriberView:
    start = None if request.start is None else published_offsets(request.start)
    service = wiring.subscriber_service()
    return SubscriberView.of(service.register(scope, stream, subscriber, request.generation, start))


@api.route("PUT", f"{_SUBSCRIBER}/position", summary="Publish how far a reader group has read", tag="Retention")
def publish(
    scope: ScopeName, stream: StreamName, subscriber: SubscriberName, request: SubscriberPositionRequest
) -> SubscriberView:
    offsets = published_offsets(request.position)
    service = wiring.subscriber_service()
    return SubscriberView.of(service.update_stream_cut(scope, stream, subscriber, request.generation, offsets))


@api.route(
    "DELETE",
    _SUBSCRIBER,
    summary="Wait no longer for a reader group",
    tag="Retention",
    status=HTTPStatus.NO_CONTENT,
)
def unregister(
    scope: ScopeName, stream: StreamName, subscriber: SubscriberName, generation: Generation = GENERATION_MAX
) -> None:
    wiring.subscriber_service().unregister(scope, stream, subscriber, generation)


handler = lambda_handler(api)

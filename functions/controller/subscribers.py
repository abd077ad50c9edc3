"""Subscribers over HTTP: reader groups that retention waits for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator

from functions import wiring
from functions.controller import models_retention as models
from functions.controller.parameters import (
    PAGE_LIMIT_DEFAULT,
    ContinuationToken,
    PageLimit,
    ScopeName,
    StreamName,
    path_value,
)
from functions.http_api import http_api, lambda_handler
from headrace.api.retention import SubscriberView
from headrace.model.subscribers import Subscriber, check_subscriber_name

api = http_api()


def _subscriber_name(text: str) -> str:
    return check_subscriber_name(path_value(text))


SubscriberName = Annotated[
    str,
    AfterValidator(_subscriber_name),
    Path(description="Name of a reader group, as `group` or `scope/group` (with %2F for the slash)"),
]
Generation = Annotated[int, Query(ge=0, le=models.GENERATION_MAX, description="Of the reader group's configuration")]

_SUBSCRIBERS = "/v1/scopes/<scope>/streams/<stream>/subscribers"
_SUBSCRIBER = f"{_SUBSCRIBERS}/<subscriber>"


def _json(subscriber: Subscriber) -> dict[str, Any]:
    return SubscriberView.of(subscriber).to_json()


def _answer(subscriber: Subscriber) -> models.SubscriberModel:
    return models.SubscriberModel.from_value(SubscriberView.of(subscriber))


@api.get(_SUBSCRIBERS, summary="List subscribers", tags=["Retention"])
def list_subscribers(
    scope: ScopeName,
    stream: StreamName,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
    continuationToken: ContinuationToken = None,
) -> models.SubscriberList:
    after = check_subscriber_name(continuationToken) if continuationToken else None
    page = wiring.subscriber_service().list_subscribers(scope, stream, limit, after)
    return models.SubscriberList.model_validate(page.to_json("subscribers", _json))


@api.get(_SUBSCRIBER, summary="How far a subscriber has read", tags=["Retention"])
def get_subscriber(scope: ScopeName, stream: StreamName, subscriber: SubscriberName) -> models.SubscriberModel:
    return _answer(wiring.subscriber_service().get_subscriber(scope, stream, subscriber))


@api.put(_SUBSCRIBER, summary="Let retention wait for a reader group", tags=["Retention"])
def register(
    scope: ScopeName, stream: StreamName, subscriber: SubscriberName, request: models.RegisterSubscriberRequest
) -> models.SubscriberModel:
    start = None if request.streamCut is None else models.published_offsets(request.streamCut)
    service = wiring.subscriber_service()
    return _answer(service.register(scope, stream, subscriber, request.generation, start))


@api.put(f"{_SUBSCRIBER}/position", summary="Publish how far a reader group has read", tags=["Retention"])
def publish(
    scope: ScopeName, stream: StreamName, subscriber: SubscriberName, request: models.SubscriberPositionRequest
) -> models.SubscriberModel:
    offsets = models.published_offsets(request.streamCut)
    service = wiring.subscriber_service()
    return _answer(service.update_stream_cut(scope, stream, subscriber, request.generation, offsets))


@api.delete(
    _SUBSCRIBER,
    summary="Wait no longer for a reader group",
    tags=["Retention"],
    status_code=HTTPStatus.NO_CONTENT,
)
def unregister(
    scope: ScopeName, stream: StreamName, subscriber: SubscriberName, generation: Generation = models.GENERATION_MAX
) -> None:
    wiring.subscriber_service().unregister(scope, stream, subscriber, generation)


handler = lambda_handler(api)

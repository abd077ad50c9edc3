"""Retention over HTTP: how much of a stream is kept, since when, and which bytes will be truncated next and why."""

from __future__ import annotations

from functions import wiring
from functions.controller.parameters import ScopeName, StreamName
from functions.http_api import HttpApi, lambda_handler
from headrace.api.retention import RetentionDescription

api = HttpApi()


@api.route(
    "GET", "/v1/scopes/<scope>/streams/<stream>/retention", summary="What is kept, and what goes next", tag="Retention"
)
def describe(scope: ScopeName, stream: StreamName) -> RetentionDescription:
    return wiring.retention_service().describe(scope, stream)


handler = lambda_handler(api)

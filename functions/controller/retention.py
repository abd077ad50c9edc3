"""Retention over HTTP: how much of a stream is kept, since when, and which bytes will be truncated next and why."""

from __future__ import annotations

from functions import wiring
from functions.controller import models_retention as models
from functions.controller.parameters import ScopeName, StreamName
from functions.http_api import http_api, lambda_handler

api = http_api()


@api.get(
    "/v1/scopes/<scope>/streams/<stream>/retention", summary="What is kept, and what goes next", tags=["Retention"]
)
def describe(scope: ScopeName, stream: StreamName) -> models.Retention:
    found = wiring.retention_service().describe(scope, stream)
    return models.Retention.model_validate(found.to_json(scope, stream))


handler = lambda_handler(api)

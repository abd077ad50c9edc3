"""Plans of readers over HTTP: the next batch of a stream, and the pieces of many ranges with links and endpoints."""

from __future__ import annotations

from functions import plan_wiring
from functions.controller import models_plans as models
from functions.controller.models_segments import offsets
from functions.controller.parameters import ScopeName, StreamName
from functions.http_api import http_api, lambda_handler

api = http_api()

_STREAM = "/v1/scopes/<scope>/streams/<stream>"


@api.post(f"{_STREAM}/next-cut", summary="The next batch: a later stream cut, and what is before it", tags=["Plans"])
def next_cut(scope: ScopeName, stream: StreamName, request: models.NextCutRequest) -> models.NextCut:
    found = plan_wiring.next_cut_service().next_cut(
        scope,
        stream,
        offsets("from", request.from_),
        offsets("to", request.to),
        request.bytes,
        strict_key_order=request.strictKeyOrder,
        on_truncation=request.onTruncation,
    )
    return models.NextCut.from_value(found)


@api.post(f"{_STREAM}/range-plans", summary="How to read many ranges of segments", tags=["Plans"])
def range_plans(scope: ScopeName, stream: StreamName, request: models.RangePlansRequest) -> models.RangePlanList:
    ranges = [one.value() for one in request.ranges]
    return models.RangePlanList.from_value(
        plan_wiring.range_plan_service().plan(scope, stream, ranges, links=request.links)
    )


handler = lambda_handler(api)

"""Plans of readers over HTTP: the next batch of a stream, and the pieces of many ranges with links and endpoints."""

from __future__ import annotations

from functions import plan_wiring
from functions.controller.parameters import NetworkOfClient, ScopeName, StreamName, network_of
from functions.http_api import HttpApi, lambda_handler
from headrace.api.plans import NextCutRequest, NextCutView, RangePlans, RangePlansRequest
from headrace.api.stream_cuts import requested_offsets

api = HttpApi()

_STREAM = "/v1/scopes/<scope>/streams/<stream>"


@api.route(
    "POST", f"{_STREAM}/next-cut", summary="The next batch: a later stream cut, and what is before it", tag="Plans"
)
def next_cut(scope: ScopeName, stream: StreamName, request: NextCutRequest) -> NextCutView:
    return plan_wiring.next_cut_service().next_cut(
        scope,
        stream,
        requested_offsets("from", request.start),
        requested_offsets("to", request.end),
        request.bytes,
        strict_key_order=request.strict_key_order,
        on_truncation=request.on_truncation,
    )


@api.route("POST", f"{_STREAM}/range-plans", summary="How to read many ranges of segments", tag="Plans")
def range_plans(
    scope: ScopeName, stream: StreamName, request: RangePlansRequest, network: NetworkOfClient = "vpc"
) -> RangePlans:
    return plan_wiring.range_plan_service().plan(
        scope, stream, request.ranges, links=request.links, network=network_of(network)
    )


handler = lambda_handler(api)

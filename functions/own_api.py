"""The API of the deployment, answered by its handlers in the process that asks: for a function that is a client.

Functions that reach segment stores have no way to API Gateway: the subnets of the stores have no route to the internet,
and an HTTP API has no private endpoint. The answers are the same, with the rights of the function that asks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx

from functions import wiring
from functions.http_api import Handler
from headrace.adapters.gateway_events import HttpRequest, gateway_message, match_route, request_event, response_of
from headrace.topology import ROUTES

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

URL = "http://own-api"
"""For a client with this transport. No request is sent there."""


class OwnApi(httpx.AsyncBaseTransport):
    """Answers the routes of `handlers`, by the names of functions, to `principal`. Others are not there."""

    def __init__(self, handlers: Mapping[str, Handler], principal: str, context: LambdaContext) -> None:
        self._handlers = handlers
        self._principal = principal
        self._context = context

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        # In a context of its own, as a thread of a gateway has it: what `to_thread` inherits would be shared.
        return await asyncio.get_running_loop().run_in_executor(None, contextvars.Context().run, self._answer, request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        target = request.url.raw_path.decode("ascii")
        match = match_route(ROUTES, request.method, target.partition("?")[0])
        handler = None if match is None else self._handlers.get(match.route.function)
        if match is None or handler is None:
            answer = gateway_message(404, "Not Found")
        else:
            headers = tuple(request.headers.multi_items())
            asked = HttpRequest(request.method, target, headers, request.content, "", "HTTP/1.1")
            event = request_event(asked, match, self._context.aws_request_id, wiring.clock().now_ms())
            event["requestContext"]["authorizer"] = {"iam": {"userArn": self._principal}}
            answer = response_of(handler(event, self._context))
        return httpx.Response(answer.status, headers=list(answer.headers), content=answer.body, request=request)

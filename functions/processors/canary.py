"""Writes an event to each container and reads it again, once a minute, as a client of the deployment would.

Its result is metrics and log lines. The invocation succeeds also if containers fail: an alarm watches the metrics.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.controller import delegation_tokens, scopes, segments, streams
from functions.observability import logger, report
from functions.own_api import URL, OwnApi
from headrace.client.headrace import AsyncHeadrace  # the bundle does not see names that a package imports late
from headrace.doctor.canary import try_containers
from headrace.embedded_metrics import CANARY_METRICS
from headrace.model.log_classes import ContainerLayout

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from headrace.doctor.round_trips import RoundTrip

PRINCIPAL: Final = "headrace-function/canary"
LIMIT_S: Final = 20.0
"""For all containers together, so that a call ends before the next one begins, also while nothing answers."""
RETRY_S: Final = 5.0

_HANDLERS: Final = MappingProxyType(
    {
        "delegation-tokens": delegation_tokens.handler,
        "scopes": scopes.handler,
        "segments": segments.handler,
        "streams": streams.handler,
    }
)
"""Of the routes that the client calls for it."""


@logger.inject_lambda_context
def handler(_event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    """Return how many containers were tried, and how many of them failed."""
    layout = ContainerLayout(*wiring.environment().containers)
    trips = asyncio.run(_trips(layout, context))
    failed = {container: trip.error for container, trip in sorted(trips.items()) if trip.error}
    for container, error in failed.items():
        logger.error("event=canary_failed container=%d error=%r", container, error)
    if len(trips) < layout.count:
        logger.warning("event=canary_incomplete containers=%d tried=%d", layout.count, len(trips))
    values = {"CanaryWrites": float(len(trips)), "CanaryFailures": float(len(failed))}
    if len(failed) < len(trips):
        values["CanaryDelayMs"] = max(trip.seconds for trip in trips.values() if not trip.error) * 1000
    report(CANARY_METRICS, values, context.function_name, wiring.clock().now_ms())
    return {"tried": len(trips), "failed": len(failed)}


async def _trips(layout: ContainerLayout, context: LambdaContext) -> dict[int, RoundTrip]:
    transport = OwnApi(_HANDLERS, PRINCIPAL, context)
    async with AsyncHeadrace(URL, retry_s=RETRY_S, transport=transport) as client:
        mark = context.aws_request_id
        return await try_containers(client, layout, mark=mark, limit_s=LIMIT_S, clock=wiring.clock())

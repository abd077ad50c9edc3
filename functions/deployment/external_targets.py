"""Tells the load balancer for clients outside where the segment stores are.

EventBridge calls it each minute, and when a task of a store starts or stops. ECS does not register the tasks itself: it
would stop those that fail a health check of the load balancer, and a mistake outside must not end stores, whose
journals have what S3 does not have yet. ECS also does not know which process of two has which containers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.aws_clients import aws_client
from functions.built_once import once
from functions.observability import count, logger
from headrace.adapters.load_balancer import LoadBalancerTargets
from headrace.controller.ticks.keep_external_targets import TargetsKept, keep_targets
from headrace.topology.services import EXTERNAL_ACCESS

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from headrace.ports.external_targets import ExternalTargets

POLL_S: Final = 3.0
PATIENCE_MS: Final = 180_000
"""A task registers its lease some seconds after it has started."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, int]:
    """Handle a call of the schedule, or an event of a task; return how many targets were added and removed.

    Raises:
        HeadraceError: the metadata table or the load balancer does not answer; Lambda repeats the event.
    """
    detail = event.get("detail")
    started = detail.get("taskArn") if isinstance(detail, dict) and detail.get("lastStatus") == "RUNNING" else None
    deadline_ms = wiring.clock().now_ms() + PATIENCE_MS
    kept = keep_targets(wiring.metadata_store(), external_targets())
    added, removed = len(kept.added), len(kept.removed)
    while started is not None and not _has_lease(kept, started) and wiring.clock().now_ms() < deadline_ms:
        pause(POLL_S)
        kept = keep_targets(wiring.metadata_store(), external_targets())
        added, removed = added + len(kept.added), removed + len(kept.removed)
    if started is None:
        _tell(kept)
    if added or removed:
        logger.info("targets outside: %d added, %d removed", added, removed)
    return {"added": added, "removed": removed}


def _has_lease(kept: TargetsKept, task: Any) -> bool:
    """Whether all processes of a task have a lease. They register together; the schedule finds one that is late."""
    return any(lease.task == task and lease.external is not None for lease in kept.leases)


def _tell(kept: TargetsKept) -> None:
    """Count what lasts: a store that has just started is healthy at the next call."""
    if kept.unreachable:
        count("ExternalStoresUnreachable", len(kept.unreachable))
        logger.error("stores that clients outside do not reach: %s", ", ".join(kept.unreachable))


@once
def external_targets() -> ExternalTargets:
    return LoadBalancerTargets(
        aws_client("elbv2"), wiring.environment().external_balancer, EXTERNAL_ACCESS.group_prefix
    )


def pause(seconds: float) -> None:
    time.sleep(seconds)

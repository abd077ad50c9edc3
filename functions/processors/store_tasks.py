"""Processes ECS task-state events: it ends the lease of a segment store at once when the store's task has stopped.

The rule that calls this function (headrace/topology/functions.py) selects stopped tasks of segment stores. An event may
arrive twice, late or not at all, because the tick also checks the leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functions import wiring
from functions.observability import logger
from functions.processors.tick_work import note_cluster
from headrace.controller.ticks.assign_containers import end_lease_of_task
from headrace.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, list[str]]:
    """Handle an event from EventBridge; return the stores whose leases it ended.

    Raises:
        InvalidRequestError: this is not such an event, so a retry cannot succeed.
        IllegalStateError: the deployment is being restored, or was started with other settings.
        UnavailableError, ThrottledError, ConflictError: a retry may succeed; Lambda retries events.
    """
    detail = event.get("detail")
    task = detail.get("taskArn") if isinstance(detail, dict) else None
    if not isinstance(task, str) or detail.get("lastStatus") != "STOPPED":  # type: ignore[union-attr]
        raise InvalidRequestError("an event of a stopped task has detail.taskArn and the detail.lastStatus STOPPED")
    wiring.fixed_settings().check()
    checked = end_lease_of_task(wiring.metadata_store(), wiring.clock(), wiring.environment().all_containers, task)
    if checked.newly_lost:
        reason = str(detail.get("stoppedReason", ""))[:200]  # type: ignore[union-attr]
        logger.warning("task %s has stopped (%s)", task, reason)
        note_cluster(checked)
    return {"ended": list(checked.newly_lost)}

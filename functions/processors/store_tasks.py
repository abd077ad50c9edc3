"""Works on ECS task-state events: the lease of a segment store whose task has stopped is ended at once.

The rule that calls this (headrace/topology/functions.py) lets through tasks of the stores that have stopped. An event
may come twice, late or not at all: the tick looks at leases anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functions import wiring
from functions.observability import logger
from functions.processors.tick_work import note_cluster
from headrace.model.errors import InvalidRequestError
from headrace.workflows.detect_failed_stores import end_lease_of_task

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


@logger.inject_lambda_context
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, list[str]]:
    """An event as EventBridge delivers it in; the stores whose lease it ended out.

    Raises:
        InvalidRequestError: this is no such event; it will never be one.
        UnavailableError, ThrottledError, ConflictError: try again, as Lambda does for events.
    """
    detail = event.get("detail")
    task = detail.get("taskArn") if isinstance(detail, dict) else None
    if not isinstance(task, str) or detail.get("lastStatus") != "STOPPED":  # type: ignore[union-attr]
        raise InvalidRequestError("an event of a stopped task has detail.taskArn and the detail.lastStatus STOPPED")
    checked = end_lease_of_task(wiring.metadata_store(), wiring.clock(), wiring.environment().container_count, task)
    if checked.newly_lost:
        reason = str(detail.get("stoppedReason", ""))[:200]  # type: ignore[union-attr]
        logger.warning("task %s has stopped (%s)", task, reason)
        note_cluster(checked)
    return {"ended": list(checked.newly_lost)}

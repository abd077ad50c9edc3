"""The custom resource between the segment stores of two zones: it is done when every log has its copies again.

CloudFormation calls the function when the stores of a zone were updated, and waits for its report. The function reads
the metadata table every 15 s. After some minutes another resource of the same gate continues to wait. The last one
reports a failure after 53 minutes, which rolls the update back. A gate that is created or deleted does not wait: the
first update to replicated stores protects no more than before until it has ended, and a first deployment has no logs.

Another resource comes before the first zone. It refuses a change from `tls=required` to `tls=off` in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.deployment.custom_resources import ResourceRequest, wait_and_report
from functions.observability import logger
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, ThrottledError, UnavailableError
from headrace.model.replication_health import missing_copies, replication_health, serving_zones
from headrace.model.tls_modes import TlsMode

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
POLL_S: Final = 15.0
PATIENCE_S: Final = 13 * 60
"""Of a resource whose template does not say; a call of the function lasts 15 minutes."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Handle one request of CloudFormation; return what became of it.

    Raises:
        InvalidRequestError: this is not such a request, so a retry cannot succeed.
        OSError: the report did not reach CloudFormation; Lambda retries the event.
    """
    request = ResourceRequest.from_event(event)
    if request.kind == "Update" and "Tls" in request.properties:
        return _wait(request, context, lambda: find_skipped_step(request), 0)
    if request.kind == "Update":
        zones = _number(request, "Zones", None, most=99)
        patience_s = _number(request, "WaitSeconds", PATIENCE_S, most=PATIENCE_S)
        return _wait(request, context, lambda: find_problems(zones), patience_s)
    # Without a report a deletion or a rollback would fail, so nothing else of the event may be refused.
    return _wait(request, context, list, 0)


def _wait(
    request: ResourceRequest, context: LambdaContext, problems: Callable[[], list[str]], patience_s: int
) -> dict[str, str]:
    done = "every log has its copies" if patience_s else "the gate does not wait"
    return wait_and_report(request, problems, context, done=done, patience_ms=patience_s * 1000, poll_s=POLL_S)


def _number(request: ResourceRequest, name: str, default: int | None, *, most: int) -> int:
    text = request.properties.get(name, default if default is None else str(default))
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise InvalidRequestError(f"an event of a replication gate has the number ResourceProperties.{name}")
    return int(text)


def find_skipped_step(request: ResourceRequest) -> list[str]:
    """Say that stores which demand TLS would be replaced by stores without it: these could not replicate meanwhile."""
    before = request.event.get("OldResourceProperties")
    was_required = isinstance(before, dict) and before.get("Tls") == TlsMode.REQUIRED
    if not was_required or request.properties["Tls"] != TlsMode.OFF:
        return []
    store, now_ms = wiring.metadata_store(), wiring.clock().now_ms()
    try:
        leases = [stored.lease for stored in ClusterRecords(store).leases()]
    except HeadraceError as error:
        return [f"the metadata table does not tell whether stores run: {error.message}"]
    running = [lease.store_id for lease in leases if not (lease.has_ended or lease.is_expired(now_ms))]
    if not running:
        return []
    return [
        f"{len(running)} running segment stores demand TLS, such as {running[0]}, and would refuse stores without it: "
        "deploy with -c tls=permissive first, and with tls=off when that has ended"
    ]


def find_problems(zones: int) -> list[str]:
    """Describe the containers for which the gate must wait; also if the metadata table does not tell."""
    store, now_ms = wiring.metadata_store(), wiring.clock().now_ms()
    try:
        leases = [stored.lease for stored in ClusterRecords(store).leases()]
        stored = ContainerLogRecords(store).read_many(range(wiring.environment().all_containers))
    except (CorruptError, ThrottledError, UnavailableError) as error:
        return [f"the metadata table does not tell: {error.message}"]
    logs = {container: each.log for container, each in stored.items()}
    return missing_copies(logs, serving_zones(leases, now_ms), replication_health(leases).blocked, zones)

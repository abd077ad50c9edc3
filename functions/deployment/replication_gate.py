"""The custom resource between the segment stores of two zones: it is done when every log has its copies again.

CloudFormation calls the function when the stores of a zone were updated, and waits for its report. The function reads
the metadata table every 15 s. Shortly before its own time ends it starts itself again. After 55 minutes it reports a
failure, which rolls the update back. A gate that is created or deleted does not wait: the first update to replicated
stores protects no more than before until it has ended, and a first deployment has no logs.
"""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from functions import wiring
from functions.observability import count, logger
from headrace import topology
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.errors import CorruptError, InvalidRequestError, ThrottledError, UnavailableError
from headrace.model.replication_gate import missing_copies
from headrace.model.replication_health import replication_health, serving_zones

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
POLL_S: Final = 15.0
PATIENCE_MS: Final = 55 * 60_000
"""CloudFormation waits an hour. A report before that tells what the gate waited for."""
TIME_LEFT_MIN_MS: Final = 60_000
"""A call with less time starts the next one: a poll, a pause and a report fit into it."""
DEADLINE_FIELD: Final = "HeadraceDeadlineMs"
"""Added to the event of the call that continues."""
REPORT_TIMEOUT_S: Final = 10.0
REASON_CHARACTERS_MAX: Final = 1_000
"""CloudFormation takes reports of up to 4 KiB."""


@dataclass(frozen=True, slots=True)
class GateRequest:
    """What CloudFormation asks for, and where it wants the report. `event` is the request as it came."""

    event: dict[str, Any]
    is_update: bool
    zones: int
    deadline_ms: int | None

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> GateRequest:
        """Raises InvalidRequestError: this is not an event of a gate, so a retry cannot succeed."""
        kind, properties = event.get("RequestType"), event.get("ResourceProperties")
        zones = properties.get("Zones") if isinstance(properties, dict) else None
        deadline_ms = event.get(DEADLINE_FIELD)
        named = [event.get(name) for name in ("StackId", "RequestId", "LogicalResourceId", "ResponseURL")]
        if (
            kind not in ("Create", "Update", "Delete")
            or not (isinstance(zones, str) and zones.isascii() and zones.isdigit() and 1 <= int(zones) <= 99)
            or not (deadline_ms is None or isinstance(deadline_ms, int))
            or not all(isinstance(text, str) for text in named)
            or urlsplit(str(named[-1])).scheme != "https"
        ):
            raise InvalidRequestError(
                "an event of a replication gate has RequestType, ResponseURL (https), StackId, RequestId, "
                "LogicalResourceId and the number ResourceProperties.Zones"
            )
        return cls(event, kind == "Update", int(zones), deadline_ms)

    def report(self, problems: list[str]) -> dict[str, str]:
        """The report to CloudFormation: success without problems."""
        resource = self.event["LogicalResourceId"]
        return {
            "Status": "FAILED" if problems else "SUCCESS",
            "Reason": "; ".join(problems)[:REASON_CHARACTERS_MAX] or "every log has its copies",
            "PhysicalResourceId": str(self.event.get("PhysicalResourceId") or resource),
            "StackId": self.event["StackId"],
            "RequestId": self.event["RequestId"],
            "LogicalResourceId": resource,
        }


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Handle one request of CloudFormation; return what became of it.

    Raises:
        InvalidRequestError: this is not such a request, so a retry cannot succeed.
        UnavailableError: the next call could not be started; Lambda retries the event.
        OSError: the report did not reach CloudFormation; Lambda retries the event.
    """
    request, clock = GateRequest.from_event(event), wiring.clock()
    deadline_ms = request.deadline_ms or clock.now_ms() + PATIENCE_MS
    problems: list[str] = []
    while request.is_update and (problems := find_problems(request.zones)) and clock.now_ms() < deadline_ms:
        count("GatesWaiting")
        logger.info("the gate waits: %s", "; ".join(problems)[:REASON_CHARACTERS_MAX])
        if context.get_remaining_time_in_millis() < TIME_LEFT_MIN_MS:
            start_again({**event, DEADLINE_FIELD: deadline_ms})
            return {"outcome": "continues"}
        pause(POLL_S)
    if problems:
        count("GatesFailed")
        logger.error("the gate fails: %s", "; ".join(problems)[:REASON_CHARACTERS_MAX])
    send_report(request, problems)
    return {"outcome": "failed" if problems else "passed"}


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


def pause(seconds: float) -> None:
    time.sleep(seconds)


def start_again(event: dict[str, Any]) -> None:
    """Start another call of this function, which goes on where this one ends. Raises UnavailableError."""
    from headrace.adapters.lambda_calls import start_function

    start_function(wiring.aws_session(), f"headrace-{topology.REPLICATION_GATE.name}", event)


def send_report(request: GateRequest, problems: list[str]) -> None:
    """Send the report to the address that CloudFormation has signed. Raises OSError."""
    body = json.dumps(request.report(problems)).encode()
    # The signature of the address covers an empty content type.
    message = urllib.request.Request(
        request.event["ResponseURL"], data=body, method="PUT", headers={"Content-Type": ""}
    )
    with urllib.request.urlopen(message, timeout=REPORT_TIMEOUT_S):
        logger.info("reported to CloudFormation")

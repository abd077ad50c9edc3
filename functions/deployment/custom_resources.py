"""Requests of CloudFormation to a custom resource that waits for a condition, and the reports that answer them.

CloudFormation calls the function, and waits for its report until the `ServiceTimeout` of the resource. A wait that may
take longer than one call of a function is divided among several resources, which are updated one after the other: each
but the last one reports success when its time is over. So a function that cannot start is noticed within minutes.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from functions import wiring
from functions.observability import count, logger
from headrace.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

TIME_LEFT_MIN_MS: Final = 60_000
"""A call with less time ends its wait: a poll, a pause and a report fit into it."""
REPORT_TIMEOUT_S: Final = 10.0
REASON_CHARACTERS_MAX: Final = 1_000
"""CloudFormation takes reports of up to 4 KiB."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What CloudFormation asks for, and where it wants the report. `event` is the request as it came.

    `kind` is Create, Update or Delete. `is_last` says that no resource continues the wait of this one.
    """

    event: dict[str, Any]
    kind: str
    properties: dict[str, Any]
    is_last: bool

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> ResourceRequest:
        """Raises InvalidRequestError: this is not an event of a custom resource, so a retry cannot succeed."""
        kind, properties = event.get("RequestType"), event.get("ResourceProperties")
        named = [event.get(name) for name in ("StackId", "RequestId", "LogicalResourceId", "ResponseURL")]
        if (
            kind not in ("Create", "Update", "Delete")
            or not isinstance(properties, dict)
            or not all(isinstance(text, str) for text in named)
            or urlsplit(str(named[-1])).scheme != "https"
        ):
            raise InvalidRequestError(
                "an event of a custom resource has RequestType, ResourceProperties, ResponseURL (https), StackId, "
                "RequestId and LogicalResourceId"
            )
        return cls(event, kind, properties, properties.get("Last", "true") == "true")

    def report(self, problems: list[str], done: str, attributes: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The report to CloudFormation: `done` without problems, or if another resource waits for them.

        Templates may refer to the `attributes` of the resource.
        """
        resource = self.event["LogicalResourceId"]
        return {
            "Status": "FAILED" if problems and self.is_last else "SUCCESS",
            "Reason": "; ".join(problems)[:REASON_CHARACTERS_MAX] or done,
            "PhysicalResourceId": str(self.event.get("PhysicalResourceId") or resource),
            "StackId": self.event["StackId"],
            "RequestId": self.event["RequestId"],
            "LogicalResourceId": resource,
            **({"Data": dict(attributes)} if attributes else {}),
        }


def wait_and_report(
    request: ResourceRequest,
    find_problems: Callable[[], list[str]],
    context: LambdaContext,
    *,
    done: str,
    patience_ms: int,
    poll_s: float,
) -> dict[str, str]:
    """Wait until there are no problems, at most for `patience_ms`, and report to CloudFormation what was found.

    Raises:
        OSError: the report did not reach CloudFormation; Lambda retries the event.
    """
    clock = wiring.clock()
    deadline_ms = clock.now_ms() + patience_ms
    while (problems := find_problems()) and clock.now_ms() < deadline_ms:
        count("GatesWaiting")
        logger.info("the gate waits: %s", "; ".join(problems)[:REASON_CHARACTERS_MAX])
        if context.get_remaining_time_in_millis() < TIME_LEFT_MIN_MS:
            break
        pause(poll_s)
    if problems and request.is_last:
        count("GatesFailed")
        logger.error("the gate fails: %s", "; ".join(problems)[:REASON_CHARACTERS_MAX])
    send_report(request, problems, done)
    if not problems:
        return {"outcome": "passed"}
    return {"outcome": "failed" if request.is_last else "continues"}


def pause(seconds: float) -> None:
    time.sleep(seconds)


def send_report(
    request: ResourceRequest, problems: list[str], done: str, attributes: Mapping[str, str] | None = None
) -> None:
    """Send the report to the address that CloudFormation has signed. Raises OSError."""
    body = json.dumps(request.report(problems, done, attributes)).encode()
    # The signature of the address covers an empty content type.
    message = urllib.request.Request(
        request.event["ResponseURL"], data=body, method="PUT", headers={"Content-Type": ""}
    )
    with urllib.request.urlopen(message, timeout=REPORT_TIMEOUT_S):
        logger.info("reported to CloudFormation")

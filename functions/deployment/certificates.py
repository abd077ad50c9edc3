"""The function that issues certificates: EventBridge calls it once a day, and CloudFormation at each deployment.

For CloudFormation it is a custom resource that is done when each process of the deployment has a certificate. The
stacks whose processes demand one are deployed later, so what does not work ends the deployment before they change. So
does a change from `tls=off` to `tls=required` in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.certificate_wiring import certificate_upkeep
from functions.deployment.custom_resources import ResourceRequest, wait_and_report
from functions.observability import count, logger
from headrace.certificates.upkeep import UpkeepReport
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.tls_modes import TlsMode

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

POLL_S: Final = 10.0
PATIENCE_MS: Final = 3 * 60_000
"""A policy or a key that was made just now takes some seconds to count everywhere."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Issue what is due; return what became of a request of CloudFormation, or "done".

    Raises:
        InvalidRequestError: this is an invalid request of CloudFormation, so a retry cannot succeed.
        UnavailableError: some certificates were not issued. Lambda repeats the run twice, and then it is tomorrow's.
        OSError: the report did not reach CloudFormation; Lambda retries the event.
    """
    if "RequestType" not in event:
        if problems := find_problems():
            raise UnavailableError("; ".join(problems))
        return {"outcome": "done"}
    request = ResourceRequest.from_event(event)
    demands_tls = request.properties.get("Tls") == TlsMode.REQUIRED
    return wait_and_report(
        request,
        list if request.kind == "Delete" else lambda: [*(find_plain_stores() if demands_tls else ()), *find_problems()],
        context,
        done="each process has a certificate",
        patience_ms=PATIENCE_MS,
        poll_s=POLL_S,
    )


def find_plain_stores() -> list[str]:
    """Say which running stores have no certificate: stores that demand TLS and these would refuse each other."""
    try:
        leases = [stored.lease for stored in ClusterRecords(wiring.metadata_store()).leases()]
    except HeadraceError as error:
        return [f"the metadata table does not tell whether stores have certificates: {error.message}"]
    now_ms = wiring.clock().now_ms()
    plain = [lease.store_id for lease in leases if not (lease.tls_name or lease.has_ended or lease.is_expired(now_ms))]
    if not plain:
        return []
    return [
        f"{len(plain)} running segment stores have no certificate yet, such as {plain[0]}: deploy with "
        "-c tls=permissive first, and with tls=required when all of them have one; -c tls=off changes nothing"
    ]


def find_problems() -> list[str]:
    """Issue what is due, and say what could not be issued; nothing if each process has a valid certificate."""
    try:
        report = certificate_upkeep().run(wiring.environment().certificate_labels)
    except HeadraceError as error:
        count("CertificatesNotIssued")
        logger.error("no certificate can be issued: %s", error.message)
        return [f"no certificate can be issued: {error.message}"]
    _tell(report)
    return [f"no certificate was issued for {label}: {error.message}" for label, error in report.failed.items()]


def _tell(report: UpkeepReport) -> None:
    for label, reason in report.issued.items():
        logger.info("issued a certificate for %s: %s", label, reason)
    if report.issued:
        count("CertificatesIssued", len(report.issued))
    for label, error in report.failed.items():
        logger.error("no certificate was issued for %s: %s", label, error.message)
    if report.failed:
        count("CertificatesNotIssued", len(report.failed))
    if report.authority_ends_soon:
        count("AuthorityEndsSoon")
        logger.error("the newest certification authority ends within a year: declare the key of another one")

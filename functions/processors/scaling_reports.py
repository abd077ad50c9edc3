"""Processes reports of segments that are too hot or too cold by scaling their streams.

A report on a busy stream is delivered again until it is too old to be acted on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from functions.processors.batches import message_body, report
from functions.processors.last_deliveries import last_delivery
from headrace import topology
from headrace.codec.scaling_report_message import parse_report
from headrace.model.requests import Requester
from headrace.ports.request_queue import requested_by

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ITSELF = Requester("headrace-function/scaling-reports", "")
"""The requester of what the function begins on its own account."""


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    wiring.fixed_settings().check()
    with requested_by(ITSELF), last_delivery(record, topology.SCALING_REPORTS_QUEUE):
        parsed = parse_report(message_body(record))
        outcome = wiring.auto_scaling_service().handle(parsed)
        count("ScalingReports", kind=parsed.kind, outcome=outcome)
        logger.info("%s segment %s: %s", parsed.kind, parsed.segment, outcome)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the identifiers of the SQS records to deliver again."""
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

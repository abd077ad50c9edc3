"""Works on ticks: each is a bounded piece of periodic work on one bucket. So far: sending lost intents again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from functions.processors.batches import message_body, report
from functions.processors.tick_messages import parse_tick
from headrace.workflows.resend_intents import resend_intents

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

RESEND_AFTER_MS = 30_000
"""An intent this old whose work is not done has probably lost its message; sending it in vain is harmless."""


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    bucket = parse_tick(message_body(record))
    sent = resend_intents(
        wiring.metadata_store(), wiring.request_queues(), wiring.clock(), bucket, older_than_ms=RESEND_AFTER_MS
    )
    if sent:
        count("IntentsResent", sent)
        logger.info("sent %d intents of bucket %d again", sent, bucket)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """SQS records in, the identifiers of those that must come again out."""
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

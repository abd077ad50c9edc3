"""Processes ticks. Each tick is a bounded piece of periodic work on one bucket.

If work is left after a piece, the same tick is queued again at once. If that message is lost, the next tick of the same
kind does the work, because a tick finds all work that is due.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from functions.processors.batches import message_body, report
from functions.processors.last_deliveries import last_delivery
from functions.processors.tick_messages import parse_tick, tick_message
from functions.processors.tick_work import TICK_WORK
from headrace import topology
from headrace.model.requests import Requester
from headrace.ports.request_queue import requested_by

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ITSELF = Requester("headrace-function/ticks", "")
"""The requester of what the function begins on its own account."""


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    # Before the guard of the last delivery, which may write a letter: no record may change during a restore.
    wiring.fixed_settings().check()
    with requested_by(ITSELF), last_delivery(record, topology.TICKS_QUEUE):
        _tick(*parse_tick(message_body(record)))


def _tick(kind: str, bucket: int) -> None:
    wiring.check_bucket_count()
    if TICK_WORK[kind](bucket):
        count("TicksFollowed", 1)
        queue_url = wiring.environment().ticks_queue_url
        wiring.sqs_client().send_message(QueueUrl=queue_url, MessageBody=json.dumps(tick_message(kind, bucket)))


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the identifiers of the SQS records to deliver again."""
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

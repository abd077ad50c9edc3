"""Works on queued aborts: one message group per transaction, so that all of them go on at the same time.

A message only says which transaction is marked; one that fails for the last time leaves a letter, and the tick sends
the abort again for as long as it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import logger
from functions.processors.batches import message_body, report
from functions.processors.last_deliveries import last_delivery
from headrace import topology

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    with last_delivery(record, topology.ABORTS_QUEUE):
        wiring.transaction_aborts().process(message_body(record))


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """SQS records in, the identifiers of those that must come again out."""
    processor = SqsFifoPartialProcessor(skip_group_on_error=True)
    processor.raise_on_entire_batch_failure = False
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

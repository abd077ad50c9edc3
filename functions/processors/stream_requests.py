"""Works on queued requests on streams and on what is made of streams.

A failure stops its message group, which is one stream, and no other: the messages of the group come again in order.
A message that fails on its last delivery becomes a dead letter, which raises an alarm; what can be undone is undone
then, and its stream is usable again. Everything else stays accepted: the sweeper sends it again until it is done.
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
    with last_delivery(record, topology.REQUESTS_QUEUE):
        wiring.request_processor().process(message_body(record))


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """SQS records in, the identifiers of those that must come again out."""
    # One message failing is ordinary here; a batch of which all failed must be reported, not raised.
    processor = SqsFifoPartialProcessor(skip_group_on_error=True)
    processor.raise_on_entire_batch_failure = False
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

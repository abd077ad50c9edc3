"""The handler that all functions on FIFO queues are: message by message, and a failure stops its group and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions.observability import logger
from functions.processors.batches import message_body, report
from functions.processors.last_deliveries import last_delivery

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from headrace.topology import Queue

Handler = Callable[[dict[str, Any], "LambdaContext"], dict[str, Any]]


def fifo_handler(queue: Queue, work_on: Callable[[dict[str, Any]], None]) -> Handler:
    """What Lambda calls for `queue`: SQS records in, the identifiers of those that must come again out.

    `work_on` gets the body of one message; on the last delivery of a message its failure leaves a letter.
    """

    # Powertools calls it with the keyword `record`: under any other name every message would fail.
    def handle_record(record: SQSRecord) -> None:
        with last_delivery(record, queue):
            work_on(message_body(record))

    @logger.inject_lambda_context
    def handle(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        # One message failing is ordinary here; a batch of which all failed must be reported, not raised.
        processor = SqsFifoPartialProcessor(skip_group_on_error=True)
        processor.raise_on_entire_batch_failure = False
        response = process_partial_response(
            event=event, record_handler=handle_record, processor=processor, context=context
        )
        return report(event, response, processor.exceptions)

    return handle

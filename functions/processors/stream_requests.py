"""Works on queued requests on streams and on what is made of streams.

A failure stops its message group, which is one stream, and no other: the messages of the group come again in order.
A message that fails on its last delivery becomes a dead letter, which raises an alarm; a scale that has not begun is
given up then, and its stream is usable again. Everything else stays accepted: the sweeper sends it again for as long as
it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import logger
from functions.processors.batches import message_body, report
from headrace import topology
from headrace.metadata.request_messages import parse_message
from headrace.model.errors import HeadraceError
from headrace.workflows.abandon_request import abandon_request

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    body = message_body(record)
    try:
        wiring.request_processor().process(body)
    except Exception:
        if int(record.attributes.approximate_receive_count or 1) >= topology.REQUESTS_QUEUE.max_receive_count:
            _give_up(body)
        raise


def _give_up(body: Mapping[str, Any]) -> None:
    try:
        scope, name, request = parse_message(body)
        abandon_request(wiring.metadata_store(), scope, name, request)
    except HeadraceError as error:
        logger.error("a request becomes a dead letter and cannot be given up: %s", error)
    else:
        logger.error("%s of %s/%s becomes a dead letter and is given up", request.request_id, scope, name)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """SQS records in, the identifiers of those that must come again out."""
    # One message failing is ordinary here; a batch of which all failed must be reported, not raised.
    processor = SqsFifoPartialProcessor(skip_group_on_error=True)
    processor.raise_on_entire_batch_failure = False
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

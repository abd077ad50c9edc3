"""Processes the dead-letter queues, so that each message in them has a dead letter that operators see.

Most messages already have one, written by the processor when the last delivery failed. A processor that was stopped
(out of time, out of memory, killed) could not write one. This function writes it, and rolls back the request in the
same way if that is possible, so that its stream is usable again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import logger
from functions.processors.batches import report, requester_in
from functions.processors.last_deliveries import write_dead_letter
from headrace import topology
from headrace.model.dead_letters import PROCESSOR_DIED
from headrace.model.errors import InvalidRequestError
from headrace.ports.request_queue import requested_by

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

_QUEUES = {queue.dead_letter_name: queue for queue in topology.QUEUES}


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    wiring.fixed_settings().check()
    name = record.event_source_arn.rpartition(":")[2]
    queue = _QUEUES.get(name)
    if queue is None:
        raise InvalidRequestError(f"{name} is not a dead-letter queue of this deployment")
    with requested_by(requester_in(record)):
        write_dead_letter(record, queue, PROCESSOR_DIED, only_unknown=True)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the identifiers of the SQS records to deliver again. Dead-letter queues need no order."""
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

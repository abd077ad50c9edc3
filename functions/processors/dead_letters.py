"""Works on the dead-letter queues: no message ends there unnoticed.

Most have their letter already, written by the processor that gave up on them. What is left are messages that no
processor could say a word about, since it was stopped: out of time, out of memory, killed. They get their letter here,
and their stream the same chance of being usable again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import logger
from functions.processors.batches import report
from functions.processors.last_deliveries import bury
from headrace import topology
from headrace.model.dead_letters import PROCESSOR_DIED
from headrace.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

_QUEUES = {queue.dead_letter_name: queue for queue in topology.QUEUES}


# Powertools calls it with the keyword `record`: under any other name every message would fail.
def _work_on(record: SQSRecord) -> None:
    wiring.fixed_settings().check()
    name = record.event_source_arn.rpartition(":")[2]
    queue = _QUEUES.get(name)
    if queue is None:
        raise InvalidRequestError(f"{name} is no dead-letter queue of ours")
    bury(record, queue, PROCESSOR_DIED, only_unknown=True)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """SQS records in, the identifiers of those that must come again out. Order does not matter among the dead."""
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    response = process_partial_response(event=event, record_handler=_work_on, processor=processor, context=context)
    return report(event, response, processor.exceptions)

"""The handler of all functions on FIFO queues. A failure stops its message group and no other.

The groups of a batch are processed concurrently, so that an unavailable segment store delays only its own groups. Each
group has its own deadline, and all of them end before the function does. A message that is not finished by then is
replaced by a new message that continues the work. Delivering the same message again would count as a failure, and a
long request would become a dead letter.
"""

from __future__ import annotations

import contextvars
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import ExceptionInfo, SqsFifoPartialProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from functions.processors.batches import message_body, report, requester_in
from functions.processors.last_deliveries import last_delivery
from functions.time_limits import work_until_reserve
from headrace.ports.clock import WorkLeftError, time_left_s, time_limit
from headrace.ports.request_queue import requested_by

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

    from headrace.topology import Queue

Handler = Callable[[dict[str, Any], "LambdaContext"], dict[str, Any]]
_Outcome = tuple[Mapping[str, Any], Sequence[ExceptionInfo]]

GROUP_SHARE = 0.5
"""The share of a batch's time that each group gets if there are several. A group whose store hangs ends then, however
long its calls could wait. So the batch is reported, and the messages of the other groups are deleted, long before
Lambda stops the function. A single group delays no other and gets all of the time."""

REST_S = 1.0
"""Subtracted from the time of the work, so that a message for the remaining work can be sent before the deadline."""


def fifo_handler(queue: Queue, work_on: Callable[[dict[str, Any]], None]) -> Handler:
    """The handler that Lambda calls with records of `queue`; it returns the identifiers of those to deliver again.

    `work_on` gets the body of one message. If it fails on the last delivery of a message, a dead letter is written.
    """

    # Powertools calls it with the keyword `record`: under any other name every message would fail.
    def handle_record(record: SQSRecord) -> None:
        # Before the guard of the last delivery, which may write a letter and undo the request under the wrong numbers.
        wiring.fixed_settings().check()
        with requested_by(requester_in(record)), last_delivery(record, queue):
            body = message_body(record)
            try:
                with time_limit(wiring.clock(), time_left_s() - REST_S):
                    work_on(body)
            except WorkLeftError as left:
                _queue_rest(record, queue, body)
                logger.info("message %s goes on in another one: %s", record.message_id, left)

    def handle_group(records: Sequence[Mapping[str, Any]], context: LambdaContext, time_s: float) -> _Outcome:
        # By default Powertools raises if all messages of a group fail. That would fail the other groups too.
        processor = SqsFifoPartialProcessor(skip_group_on_error=True)
        processor.raise_on_entire_batch_failure = False
        with time_limit(wiring.clock(), time_s):
            response = process_partial_response(
                event={"Records": list(records)}, record_handler=handle_record, processor=processor, context=context
            )
        return response, processor.exceptions

    @logger.inject_lambda_context
    def handle(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
        groups = _by_group(event["Records"])
        with work_until_reserve(context):
            time_s = time_left_s() * (GROUP_SHARE if len(groups) > 1 else 1.0)
            outcomes = _at_once([partial(handle_group, records, context, time_s) for records in groups])
        failures = [each for response, _ in outcomes for each in response["batchItemFailures"]]
        return report(event, {"batchItemFailures": failures}, [error for _, errors in outcomes for error in errors])

    return handle


def _by_group(records: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The records of each message group, in their order."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(str(record["attributes"].get("MessageGroupId", "")), []).append(record)
    return list(groups.values())


def _at_once(tasks: Sequence[Callable[[], _Outcome]]) -> list[_Outcome]:
    """Run each task in its own thread, or a single task in this thread; return their results in order."""
    if len(tasks) == 1:
        return [tasks[0]()]
    with ThreadPoolExecutor(max_workers=max(1, len(tasks))) as pool:
        # The deadline is in a context variable, which threads do not inherit.
        futures = [pool.submit(contextvars.copy_context().run, task) for task in tasks]
        return [future.result() for future in futures]


def _queue_rest(record: SQSRecord, queue: Queue, body: Mapping[str, Any]) -> None:
    """Send the same request in a new message. Its id follows from this one's, so a redelivery adds no second one."""
    group = str(record.raw_event["attributes"]["MessageGroupId"])
    identity = hashlib.sha256(f"{record.message_id}:rest".encode()).hexdigest()
    wiring.queue_named(queue.name).send(group=group, body=body, deduplication_id=identity)
    count("MessagesContinued", queue=queue.name)

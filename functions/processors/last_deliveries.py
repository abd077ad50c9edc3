"""Dead-letter handling in a processor: when the last delivery of a message fails, it writes a letter with the cause.

The queue then still moves the message to its dead-letter queue. The function of that queue finds the letter and does
nothing more. It writes the letter itself only if the processor was stopped before it could.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from functions.processors.batches import requester_in
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.model.dead_letters import Cause, DeadLetter, Delivery, cause_of
from headrace.model.errors import HeadraceError
from headrace.topology import Queue


@contextmanager
def last_delivery(record: SQSRecord, queue: Queue) -> Iterator[None]:
    """Wrap the work on a message of `queue`. On the last delivery an error writes the letter before it propagates."""
    try:
        yield
    except Exception as error:
        if _tries(record) >= queue.max_receive_count:
            _try_to_write(record, queue, cause_of(error))
        raise


def write_dead_letter(
    record: SQSRecord, queue: Queue, cause: Cause, *, only_unknown: bool = False
) -> DeadLetter | None:
    """Write the dead letter of a message of `queue`; raises the errors of the workflow that it calls."""
    now_ms = wiring.clock().now_ms()
    delivery = Delivery(
        queue=queue.name,
        group=str(record.raw_event["attributes"].get("MessageGroupId", "")),
        text=record.body,
        first_try_ms=int(record.raw_event["attributes"].get("ApproximateFirstReceiveTimestamp", now_ms)),
        tries=_tries(record),
        requester=requester_in(record),
    )
    letter = handle_dead_letter(wiring.metadata_store(), delivery, cause, now_ms, only_unknown=only_unknown)
    if letter is not None:
        count("DeadLetters", queue=queue.name, status=str(letter.status))
        logger.error(
            "%s of %s is a dead letter, %s: %s: %s",
            letter.request_id or record.message_id,
            letter.subject or queue.name,
            letter.status,
            letter.cause.code,
            letter.cause.message,
        )
    return letter


def _try_to_write(record: SQSRecord, queue: Queue, cause: Cause) -> None:
    try:
        write_dead_letter(record, queue, cause)
    except HeadraceError as error:
        logger.error("the dead letter of %s is left to the dead-letter queue: %s", record.message_id, error)


def _tries(record: SQSRecord) -> int:
    return int(record.attributes.approximate_receive_count or 1)

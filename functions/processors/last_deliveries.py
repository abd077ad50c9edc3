"""What a processor does when a message fails for the last time: it writes the dead letter, and why.

The queue moves the message to its dead-letter queue all the same; the function that works there finds the letter and
has nothing left to do. It does the work for messages whose processor died without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from headrace.model.dead_letters import Cause, DeadLetter, Delivery, cause_of
from headrace.model.errors import HeadraceError
from headrace.topology import Queue
from headrace.workflows.bury_message import bury_message


@contextmanager
def last_delivery(record: SQSRecord, queue: Queue) -> Iterator[None]:
    """Around the work on a message of `queue`: an error goes on its way, after the letter if no delivery follows."""
    try:
        yield
    except Exception as error:
        if _tries(record) >= queue.max_receive_count:
            _bury(record, queue, cause_of(error))
        raise


def bury(record: SQSRecord, queue: Queue, cause: Cause, *, only_unknown: bool = False) -> DeadLetter | None:
    """Writes the letter of a message of `queue`; raises what `bury_message` raises."""
    now_ms = wiring.clock().now_ms()
    delivery = Delivery(
        queue=queue.name,
        group=str(record.raw_event["attributes"].get("MessageGroupId", "")),
        text=record.body,
        first_try_ms=int(record.raw_event["attributes"].get("ApproximateFirstReceiveTimestamp", now_ms)),
        tries=_tries(record),
    )
    letter = bury_message(wiring.metadata_store(), delivery, cause, now_ms, only_unknown=only_unknown)
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


def _bury(record: SQSRecord, queue: Queue, cause: Cause) -> None:
    try:
        bury(record, queue, cause)
    except HeadraceError as error:
        logger.error("the dead letter of %s is left to the dead-letter queue: %s", record.message_id, error)


def _tries(record: SQSRecord) -> int:
    return int(record.attributes.approximate_receive_count or 1)

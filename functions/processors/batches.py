"""What the queue processors share: parsing a record, and when a failed message comes again.

A message that fails stays invisible until the queue's time-out, minutes later, and with FIFO queues its whole group
waits with it. So the processor itself says when to try again: soon at first, then ever later.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from aws_lambda_powertools.utilities.batch import ExceptionInfo
from aws_lambda_powertools.utilities.batch.exceptions import SQSFifoMessageGroupCircuitBreakerError
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from functions import wiring
from functions.observability import count, logger
from headrace.metadata.fixed_settings import SETTING_CHANGED
from headrace.model.errors import HeadraceError, InvalidRequestError

RETRY_FIRST_S = 1
RETRY_MAX_S = 60
_CHANGES_PER_CALL_MAX = 10


def message_body(record: SQSRecord) -> dict[str, Any]:
    """The JSON object in a message.

    Raises:
        InvalidRequestError: the body is something else; it can only become a dead letter.
    """
    try:
        body = json.loads(record.body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"message {record.message_id} is not JSON") from error
    if not isinstance(body, dict):
        raise InvalidRequestError(f"message {record.message_id} is not a JSON object")
    return body


def retry_delay_s(receive_count: int) -> int:
    """Seconds until a message that was received `receive_count` times is tried again."""
    return min(RETRY_MAX_S, RETRY_FIRST_S << min(max(receive_count - 1, 0), 16))


def report(
    event: Mapping[str, Any], response: Mapping[str, Any], exceptions: Sequence[ExceptionInfo]
) -> dict[str, Any]:
    """Logs and counts the outcome, makes the failed messages come again soon, and returns the response for Lambda.

    The messages of a group come again together, or a later one would overtake an earlier one that still waits.
    """
    failed = {one["itemIdentifier"] for one in response["batchItemFailures"]}
    records = [record for record in event["Records"] if record["messageId"] in failed]
    for exception in exceptions:
        _log(exception[1])
    count("MessagesProcessed", len(event["Records"]) - len(records))
    if records:
        count("MessagesFailed", len(records))
        _try_again_soon(records)
    return dict(response)


def _try_again_soon(records: Sequence[Mapping[str, Any]]) -> None:
    """A failure here only means that the messages come again later than they could."""
    delays_s: dict[str, int] = {}
    for record in records:
        delay_s = retry_delay_s(int(record["attributes"].get("ApproximateReceiveCount", 1)))
        group = _group(record)
        delays_s[group] = max(delay_s, delays_s.get(group, 0))
    entries = [
        {"Id": str(index), "ReceiptHandle": record["receiptHandle"], "VisibilityTimeout": delays_s[_group(record)]}
        for index, record in enumerate(records)
    ]
    try:
        queue_url = _queue_url(records[0]["eventSourceARN"].rpartition(":")[2])
        for first in range(0, len(entries), _CHANGES_PER_CALL_MAX):
            batch = entries[first : first + _CHANGES_PER_CALL_MAX]
            wiring.sqs_client().change_message_visibility_batch(QueueUrl=queue_url, Entries=batch)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  The messages are safe: they come again when the queue's own time-out is over.
        logger.warning("failed messages come again only after the queue's time-out", exc_info=True)


def _log(error: BaseException | None) -> None:
    """What is expected to pass gets a line; what is not gets its trace."""
    if isinstance(error, SQSFifoMessageGroupCircuitBreakerError):
        return  # A follower of a failed message: that one has been logged.
    if isinstance(error, HeadraceError) and error.specific_code == SETTING_CHANGED:
        logger.error("message stays in the queue: %s", error)
    elif isinstance(error, HeadraceError) and error.retry != "never":
        logger.warning("message will come again: %s", error)
    else:
        logger.error("message failed", exc_info=error)


def _group(record: Mapping[str, Any]) -> str:
    """A standard queue has no groups: each message is its own."""
    return str(record["attributes"].get("MessageGroupId") or record["messageId"])


@functools.cache
def _queue_url(name: str) -> str:
    return wiring.sqs_client().get_queue_url(QueueName=name)["QueueUrl"]

"""Functions that the queue processors share: parsing of a record, and the delay before a failed message is retried.

A failed message stays invisible until the queue's time-out, which is minutes later, and in a FIFO queue its whole group
waits with it. So the processor sets the delay of the next delivery: short at first, then longer with each failure.
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
from headrace.model.backoff import doubled_pause
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.formats import RELEASE_REFUSED
from headrace.model.requests import Requester
from headrace.ports.request_queue import CORRELATION_ID, REQUESTED_BY, requested_by

RETRY_FIRST_S = 1
RETRY_MAX_S = 60
_CHANGES_PER_CALL_MAX = 10


def message_body(record: SQSRecord) -> dict[str, Any]:
    """The JSON object in a message.

    Raises:
        InvalidRequestError: the body is not a JSON object. Retries cannot help; it will become a dead letter.
    """
    try:
        body = json.loads(record.body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"message {record.message_id} is not JSON") from error
    if not isinstance(body, dict):
        raise InvalidRequestError(f"message {record.message_id} is not a JSON object")
    return body


def requester_in(record: SQSRecord) -> Requester | None:
    """Who asked for the work of a message; None for one of a former release, or of another sender."""
    attributes = record.raw_event.get("messageAttributes") or {}
    principal, correlation_id = (
        (attributes.get(name) or {}).get("stringValue") for name in (REQUESTED_BY, CORRELATION_ID)
    )
    return Requester(str(principal), str(correlation_id or "")) if principal else None


def retry_delay_s(receive_count: int) -> int:
    """Seconds until a message that was received `receive_count` times is delivered again."""
    return doubled_pause(receive_count, RETRY_FIRST_S, RETRY_MAX_S)


def report(
    event: Mapping[str, Any], response: Mapping[str, Any], exceptions: Sequence[ExceptionInfo]
) -> dict[str, Any]:
    """Log and count the outcome, make the failed messages visible again soon, and return the response for Lambda.

    All messages of a group get the same delay. Otherwise a later message could overtake an earlier one.
    """
    failed = {each["itemIdentifier"] for each in response["batchItemFailures"]}
    records = [record for record in event["Records"] if record["messageId"] in failed]
    asked_by = {record["messageId"]: requester_in(SQSRecord(dict(record))) for record in records}
    # Powertools keeps both in the order of the failures.
    for failure, exception in zip(response["batchItemFailures"], exceptions, strict=False):
        with requested_by(asked_by[failure["itemIdentifier"]]):
            _log(exception[1])
    count("MessagesProcessed", len(event["Records"]) - len(records))
    if records:
        count("MessagesFailed", len(records))
        _try_again_soon(records)
    return dict(response)


def _try_again_soon(records: Sequence[Mapping[str, Any]]) -> None:
    """Shorten the time-outs of the messages. If the call fails, they are delivered again after the queue's time-out."""
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
    except Exception:  # noqa: BLE001  No message is lost: the queue delivers them again after its own time-out.
        logger.warning("failed messages come again only after the queue's time-out", exc_info=True)


def _log(error: BaseException | None) -> None:
    """Log an error that a retry may solve as one line, and any other error with its traceback."""
    if isinstance(error, SQSFifoMessageGroupCircuitBreakerError):
        return  # The message was skipped because an earlier one of its group failed, and that failure was logged.
    if isinstance(error, HeadraceError) and error.specific_code in (SETTING_CHANGED, RELEASE_REFUSED):
        logger.error("message stays in the queue: %s", error)
    elif isinstance(error, HeadraceError) and error.retry != "never":
        logger.warning("message will come again: %s", error)
    else:
        logger.error("message failed", exc_info=error)


def _group(record: Mapping[str, Any]) -> str:
    """The message group of a record. A standard queue has no groups, so there each message is its own group."""
    return str(record["attributes"].get("MessageGroupId") or record["messageId"])


@functools.cache
def _queue_url(name: str) -> str:
    return wiring.sqs_client().get_queue_url(QueueName=name)["QueueUrl"]

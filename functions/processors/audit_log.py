"""Copies audit lines from the logs of functions into the log group of audit lines, which is kept for longer.

A subscription of each log group calls the function with the audit lines only. It is asynchronous: a call of the API
waits for nothing, and a batch of lines costs one request. Lines that cannot be copied are delivered twice more within
minutes; then an alarm is raised, and they stay for a month in the log of their function. A line may be copied twice.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.observability import count, logger
from headrace.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

BATCH_LINES_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 1_048_576
LINE_OVERHEAD_BYTES: Final = 26
BATCH_SPAN_MS: Final = 24 * 60 * 60 * 1_000 - 1
"""What CloudWatch Logs takes with one request: a line counts with its bytes in UTF-8 and an overhead."""

_DATA: Final = "DATA_MESSAGE"

Line = Mapping[str, Any]
"""A line as a subscription delivers it, with its `timestamp` in milliseconds and its `message`."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Copy the lines of one delivery.

    Raises:
        InvalidRequestError: this is not a delivery of a subscription.
        UnavailableError: CloudWatch Logs does not take the lines; Lambda calls again.
    """
    lines = delivered_lines(event)
    if not lines:
        return
    stream = wiring.audit_log_stream()
    refused = sum(stream.put(batch) for batch in batches(lines))
    count("AuditLinesCopied", len(lines) - refused)
    if refused:
        # Too old or too new for CloudWatch Logs. No repetition helps.
        count("AuditLinesRefused", refused)
        logger.error("%d of %d audit lines are refused by CloudWatch Logs", refused, len(lines))


def delivered_lines(event: Mapping[str, Any]) -> Sequence[Line]:
    """The lines of a delivery; none if it only tests the subscription."""
    try:
        data = gzip.decompress(base64.b64decode(event["awslogs"]["data"], validate=True))
        delivery = json.loads(data)
        lines = delivery["logEvents"] if delivery["messageType"] == _DATA else []
        return [{"timestamp": int(line["timestamp"]), "message": str(line["message"])} for line in lines]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise InvalidRequestError("this is not a delivery of a log subscription") from error


def batches(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """The lines in the order of time, in pieces that CloudWatch Logs takes with one request each."""
    batch: list[Line] = []
    size = 0
    for line in sorted(lines, key=lambda line: int(line["timestamp"])):
        more = len(line["message"].encode("utf-8", "surrogatepass")) + LINE_OVERHEAD_BYTES
        is_full = len(batch) == BATCH_LINES_MAX or size + more > BATCH_BYTES_MAX
        if batch and (is_full or line["timestamp"] - batch[0]["timestamp"] > BATCH_SPAN_MS):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += more
    if batch:
        yield batch

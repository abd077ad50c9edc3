"""Sends the ticks of the coming minute. A schedule can run once a minute; a queue can delay each message by seconds.

The function keeps no state on purpose: a lost message costs one tick. If each tick sent the next one, a lost message
would end all later ticks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from functions import wiring
from functions.observability import count, logger
from functions.processors.tick_messages import tick_message
from headrace import topology
from headrace.model.errors import UnavailableError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

MESSAGES_PER_CALL = 10
_MS_PER_MINUTE = 60_000


@logger.inject_lambda_context
def handler(_event: dict[str, Any], _context: LambdaContext) -> dict[str, int]:
    """Send every tick of the coming minute; return their number.

    Raises:
        UnavailableError: the queue accepted only a part of them. Lambda does not repeat the call, because a tick that
            is a minute late is useless: the next minute sends its own ticks.
    """
    minute = wiring.clock().now_ms() // _MS_PER_MINUTE
    entries = [
        {
            "Id": f"{tick.kind}-{bucket}-{delay_s}",
            "DelaySeconds": delay_s,
            "MessageBody": json.dumps(tick_message(tick.kind, bucket)),
        }
        for tick in topology.TICKS
        for bucket in range(tick.buckets)
        for delay_s in tick.delays_s(bucket, minute)
    ]
    queue_url = wiring.environment().ticks_queue_url
    refused: list[str] = []
    for first in range(0, len(entries), MESSAGES_PER_CALL):
        batch = entries[first : first + MESSAGES_PER_CALL]
        answer = wiring.sqs_client().send_message_batch(QueueUrl=queue_url, Entries=batch)  # type: ignore[arg-type]
        refused += [f"{each['Id']}: {each['Code']}" for each in answer.get("Failed", [])]
    if refused:
        raise UnavailableError(f"the queue refused {len(refused)} of {len(entries)} ticks, among them {refused[0]}")
    count("TicksScheduled", len(entries))
    return {"sent": len(entries)}

"""How much of its remaining time an invocation may spend on work: when it is over Lambda stops the function.

What a function does is bounded by a deadline (`headrace.ports.deadlines`). After it no request to another service
begins, but the last one may still be waiting for its answer: that, and the function's own answer, is the reserve.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from functions import wiring
from headrace.ports.deadlines import time_limit

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

RESERVE_S = 8.0
"""One attempt at DynamoDB (1 s to connect, 5 s to answer), and time to report."""


def work_until_reserve(context: LambdaContext) -> AbstractContextManager[None]:
    """What is done inside ends in time for this invocation to end by itself."""
    return time_limit(wiring.clock(), context.get_remaining_time_in_millis() / 1000 - RESERVE_S)

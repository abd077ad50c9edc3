"""The part of its remaining time that an invocation may spend on work. Lambda stops it when all of it is over.

The work of a function has a deadline (`headrace.ports.clock`). No request to another service starts after it, but
the last one may still wait for its response. The reserve is the time for that and for the function's own response.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from functions import wiring
from headrace.ports.clock import time_limit

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

RESERVE_S = 8.0
"""One attempt at DynamoDB (1 s to connect, 5 s to answer), and time to report."""


def work_until_reserve(context: LambdaContext) -> AbstractContextManager[None]:
    """A context whose work ends early enough for the invocation to end by itself."""
    return time_limit(wiring.clock(), context.get_remaining_time_in_millis() / 1000 - RESERVE_S)

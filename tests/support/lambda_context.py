"""The context that Lambda gives to a handler."""

from __future__ import annotations

from collections.abc import Callable

from aws_lambda_powertools.utilities.typing import LambdaContext


class FunctionContext(LambdaContext):
    """What Powertools and our handlers read from it. `time_left_ms` is asked whenever a handler asks."""

    _function_name = "f"
    _memory_limit_in_mb = 512
    _invoked_function_arn = "arn:aws:lambda:f"
    _aws_request_id = "r-1"

    def __init__(self, time_left_ms: Callable[[], int] = lambda: 29_000) -> None:
        self._time_left_ms = time_left_ms

    def get_remaining_time_in_millis(self) -> int:  # type: ignore[override]  # Lambda's own is no static method.
        return self._time_left_ms()

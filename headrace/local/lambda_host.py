"""Calls the declared Lambda handlers in this process, as similar to Lambda as threads allow.

Events and results are converted to JSON and back. So a value that JSON cannot represent fails here as on Lambda, and so
does a result above Lambda's limit. Memory, time-outs, cold starts and permissions are not emulated.
"""

from __future__ import annotations

import importlib
import itertools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace import topology
from headrace.ports.clock import Clock

RESULT_BYTES_MAX = 6 * 1024 * 1024
_ACCOUNT = "000000000000"

Handler = Callable[[Any, Any], Any]


class HandlerFailedError(Exception):
    """The handler raised, or its result was invalid; the message and the cause have the reason."""


@dataclass(frozen=True)
class InvocationContext:
    """The attributes of Lambda's context object that handlers use."""

    function_name: str
    memory_limit_in_mb: int
    aws_request_id: str
    deadline_s: float
    clock: Clock
    function_version: str = "$LATEST"
    log_group_name: str = "local"
    log_stream_name: str = "local"

    @property
    def invoked_function_arn(self) -> str:
        return f"arn:aws:lambda:local:{_ACCOUNT}:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        return max(0, round((self.deadline_s - self.clock.monotonic_s()) * 1000))


class LambdaHost:
    """The handlers by function name. All are imported here, so that a broken one fails the start of the stack."""

    def __init__(self, clock: Clock, functions: tuple[topology.Function, ...] = topology.FUNCTIONS) -> None:
        self._clock = clock
        self._functions = {declared.name: declared for declared in functions}
        self._handlers: dict[str, Handler] = {declared.name: _load(declared.handler) for declared in functions}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def invoke(self, name: str, event: Mapping[str, Any]) -> Any:
        """Call the handler; return its result after a conversion to JSON and back.

        Raises:
            HandlerFailedError: the handler raised, or its result is not JSON or too large.
        """
        declared = self._functions[name]
        with self._lock:
            request_id = f"{next(self._numbers):08d}-local"
        context = InvocationContext(
            name, declared.memory_mb, request_id, self._clock.monotonic_s() + declared.timeout_s, self._clock
        )
        payload = json.loads(json.dumps(event))
        try:
            result = json.dumps(self._handlers[name](payload, context))
        except Exception as error:  # as on Lambda, any exception of a handler is a failed invocation
            raise HandlerFailedError(f"function {name} failed: {type(error).__name__}: {error}") from error
        if len(result) > RESULT_BYTES_MAX:
            raise HandlerFailedError(f"function {name} returned {len(result)} bytes: Lambda takes {RESULT_BYTES_MAX}")
        return json.loads(result)


def _load(dotted: str) -> Handler:
    module, _, attribute = dotted.rpartition(".")
    handler: Handler = getattr(importlib.import_module(module), attribute)
    return handler

"""Handlers called as Lambda would."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.local import lambda_host
from headrace.local.lambda_host import HandlerFailedError, LambdaHost
from headrace.topology import Function


class FakeClock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.fixture
def host() -> Iterator[Callable[[Any], LambdaHost]]:
    """A host of one function `f` with the given handler."""
    module = types.ModuleType("a_made_up_function")
    sys.modules[module.__name__] = module

    def make(handler: Any) -> LambdaHost:
        module.handler = handler  # type: ignore[attr-defined]
        declared = Function("f", "a_made_up_function.handler", "", (), memory_mb=256, timeout_s=10)
        return LambdaHost(FakeClock(), (declared,))

    yield make
    del sys.modules[module.__name__]


def test_events_and_results_pass_through_json(host: Callable[[Any], LambdaHost]):
    seen: list[Any] = []

    def handler(event: Any, _context: Any) -> Any:
        seen.append(event)
        return {"tuple": (1, 2), 3: "key"}

    event = {"list": (1, 2)}
    assert host(handler).invoke("f", event) == {"tuple": [1, 2], "3": "key"}
    assert seen == [{"list": [1, 2]}]
    seen[0]["list"].append(9)
    assert event == {"list": (1, 2)}


@pytest.mark.parametrize("result", [b"bytes", {1, 2}, object()])
def test_a_result_that_json_cannot_carry_is_a_failure(host: Callable[[Any], LambdaHost], result: Any):
    with pytest.raises(HandlerFailedError):
        host(lambda event, context: result).invoke("f", {})


def test_a_result_above_the_limit_is_a_failure(host: Callable[[Any], LambdaHost], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lambda_host, "RESULT_BYTES_MAX", 10)
    with pytest.raises(HandlerFailedError, match="Lambda takes 10"):
        host(lambda event, context: "x" * 20).invoke("f", {})


def test_what_a_handler_raises_is_its_failure(host: Callable[[Any], LambdaHost]):
    def handler(_event: Any, _context: Any) -> None:
        raise KeyError("missing")

    with pytest.raises(HandlerFailedError, match="KeyError"):
        host(handler).invoke("f", {})


def test_the_context_tells_name_memory_and_time_left(host: Callable[[Any], LambdaHost]):
    seen: list[Any] = []
    host(lambda event, context: seen.append(context)).invoke("f", {})
    context = seen[0]
    assert (context.function_name, context.memory_limit_in_mb) == ("f", 256)
    assert context.get_remaining_time_in_millis() == 10_000
    context.clock.at_s += 60
    assert context.get_remaining_time_in_millis() == 0

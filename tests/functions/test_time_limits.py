"""No call outlives its function: requests to other services begin before the deadline or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.time_limits import RESERVE_S, work_until_reserve
from headrace import topology
from headrace.adapters.dynamodb.client import Retries
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.sqs import ATTEMPTS_MAX, CALL_S_MAX, CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from headrace.model.errors import OutOfTimeError
from headrace.ports.clock import require_time, time_left_s, time_limit

API_CALL_S_MAX = 29
ATTEMPT_S_MAX = 6
"""One attempt at DynamoDB: 1 s to connect, 5 s for the answer."""

PAUSE_S_MAX = 1
"""Of botocore before the second attempt."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock()
    monkeypatch.setattr(wiring, "clock", lambda: made)
    return made


def test_api_call_ends_in_29_s_though_attempts_time_out(
    active_stream: str, clock: ManualClock, call: Call, world: FunctionWorld, monkeypatch: pytest.MonkeyPatch
):
    """Of three attempts at the metadata store, behind the retries of the real adapter, two run into their time-out."""
    retries = Retries(
        sleep=lambda seconds: clock.advance(int(seconds * 1000)), monotonic_s=clock.monotonic_s, jitter=lambda: 1.0
    )
    attempts: list[str] = []

    def attempt(name: str, request: Callable[[], Any]) -> Any:
        attempts.append(name)
        if len(attempts) % 3 == 0:
            return request()
        clock.advance(ATTEMPT_S_MAX * 1000 - 100)  # a little less, or the adapter would give up by itself
        raise ReadTimeoutError(endpoint_url="dynamodb")

    class SlowStore:
        def __getattr__(self, name: str) -> Any:
            operation = getattr(world.store, name)
            return lambda *given, **named: retries.run(name, lambda: attempt(name, lambda: operation(*given, **named)))

    monkeypatch.setattr(wiring, "metadata_store", SlowStore)
    wiring.forget_services()
    answer = call("PUT", f"{active_stream}/writers/w/position", {"time": 1, "position": {"0": 1, "1": 1}})
    assert (answer.status, answer.body["error"]["retry"]) == (503, "later")
    assert len(attempts) > 3, "more than one request was served slowly"
    assert clock.monotonic_s() <= API_CALL_S_MAX


def test_every_api_function_has_the_time_that_its_gateway_waits():
    functions = {route.function for route in topology.ROUTES}
    assert {topology.function(name).timeout_s for name in functions} == {API_CALL_S_MAX}


def test_last_attempts_fit_into_the_reserve():
    assert ATTEMPT_S_MAX < RESERVE_S
    assert ATTEMPTS_MAX * (CONNECT_TIMEOUT_S + READ_TIMEOUT_S) + (ATTEMPTS_MAX - 1) * PAUSE_S_MAX == CALL_S_MAX
    assert CALL_S_MAX < RESERVE_S


def test_deadline_leaves_the_reserve(context: FunctionContext, clock: ManualClock):
    with work_until_reserve(context):
        assert time_left_s() == API_CALL_S_MAX - RESERVE_S
        clock.advance(int((API_CALL_S_MAX - RESERVE_S) * 1000))
        with pytest.raises(OutOfTimeError):
            require_time("a request")
    require_time("a request after it")


def test_inner_limit_never_extends_the_outer_one(clock: ManualClock):
    with time_limit(clock, 5):
        with time_limit(clock, 60):
            assert time_left_s() == 5
        with time_limit(clock, 2):
            assert time_left_s() == 2
        assert time_left_s() == 5
    assert time_left_s(at_most=7) == 7

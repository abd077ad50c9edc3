"""An operation is repeated after a conflict, a bounded number of times, and after no other error."""

from __future__ import annotations

import pytest

from headrace.metadata.optimistic_retry import (
    ATTEMPTS_PER_CALL_MAX,
    ATTEMPTS_PER_MESSAGE_MAX,
    ConflictBackoff,
    repeat_on_conflict,
)
from headrace.model.errors import ConflictError, UnavailableError
from headrace.ports.metadata_store import WriteConflictError

LOST = WriteConflictError("somebody else was faster", {0: None})
CALL_S_MAX = 29.0
"""How long API Gateway waits for a function."""

BUSY = ConflictError("another operation runs")


class Attempts:
    """Fails so many times, and then succeeds."""

    def __init__(self, failures: int, error: Exception = LOST) -> None:
        self.failures, self.error, self.made = failures, error, 0

    def __call__(self) -> str:
        self.made += 1
        if self.made <= self.failures:
            raise self.error
        return "done"


@pytest.mark.parametrize("failures", [0, 1, ATTEMPTS_PER_CALL_MAX - 1])
def test_attempts_are_repeated_until_one_succeeds(failures: int):
    attempts = Attempts(failures)
    assert repeat_on_conflict(attempts) == "done"
    assert attempts.made == failures + 1


@pytest.mark.parametrize("attempts_max", [1, ATTEMPTS_PER_MESSAGE_MAX, ATTEMPTS_PER_CALL_MAX])
def test_conflict_of_the_last_attempt_is_raised(attempts_max: int):
    attempts = Attempts(100)
    with pytest.raises(WriteConflictError):
        repeat_on_conflict(attempts, attempts_max)
    assert attempts.made == attempts_max


def test_pauses_double_up_to_a_bound_with_full_jitter():
    slept: list[float] = []
    halves = ConflictBackoff(slept.append, lambda: 0.5)
    with pytest.raises(WriteConflictError):
        repeat_on_conflict(Attempts(100), 9, backoff=halves)
    assert slept == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]
    whole = sum(min(0.5, 0.01 * 2**failures) for failures in range(ATTEMPTS_PER_CALL_MAX - 1))
    assert whole < CALL_S_MAX / 2


@pytest.mark.parametrize("error", [BUSY, UnavailableError("away"), RuntimeError("a mistake")])
def test_other_error_is_raised_at_once(error: Exception):
    attempts = Attempts(1, error)
    with pytest.raises(type(error)):
        repeat_on_conflict(attempts)
    assert attempts.made == 1


@pytest.mark.parametrize("error", [BUSY, LOST])
def test_any_conflict_error_is_repeated_on_request(error: Exception):
    attempts = Attempts(2, error)
    assert repeat_on_conflict(attempts, ATTEMPTS_PER_MESSAGE_MAX, ConflictError) == "done"
    assert attempts.made == 3

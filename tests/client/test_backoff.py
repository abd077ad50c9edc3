"""How long the client waits before it tries again."""

from __future__ import annotations

import asyncio

import pytest

from headrace.client.backoff import LONGEST_THROTTLED_WAIT_S, LONGEST_WAIT_S, Backoff
from headrace.model.errors import HeadraceError, ThrottledError, UnavailableError

pytestmark = pytest.mark.anyio

LOST = UnavailableError("the store was lost")
FAILURES = 12


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the test, which take no time."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return pauses


@pytest.mark.parametrize(
    ("problem", "longest_s"), [(LOST, LONGEST_WAIT_S), (ThrottledError("too much"), LONGEST_THROTTLED_WAIT_S)]
)
async def test_waits_double_up_to_a_bound(problem: HeadraceError, longest_s: float, waits_s: list[float]) -> None:
    backoff = Backoff(60, jitter=lambda: 1.0)
    for _ in range(FAILURES):
        await backoff.wait(problem)
    assert waits_s[:5] == [0.02, 0.04, 0.08, 0.16, 0.32]
    assert waits_s[-2:] == [longest_s, longest_s]


async def test_lost_store_is_looked_for_often(waits_s: list[float]) -> None:
    """Another store takes over after 4 to 6 s: a long wait would double that."""
    backoff = Backoff(60, jitter=lambda: 1.0)
    while sum(waits_s) < 10:
        await backoff.wait(LOST)
    assert max(waits_s) <= 1


async def test_progress_makes_waits_short_again(waits_s: list[float]) -> None:
    backoff = Backoff(60, jitter=lambda: 0.0)
    for _ in range(FAILURES):
        await backoff.wait(LOST)
    backoff.progress()
    await backoff.wait(LOST)
    assert waits_s[-2:] == [LONGEST_WAIT_S / 2, 0.01]


async def test_no_wait_after_the_time_is_over(waits_s: list[float]) -> None:
    backoff = Backoff(0)
    await backoff.wait(LOST)
    with pytest.raises(UnavailableError, match="the store was lost"):
        await backoff.wait(LOST)
    assert len(waits_s) == 1

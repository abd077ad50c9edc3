"""A write goes on when its caller is cancelled. When it failed then, asyncio reported its error as never retrieved."""

from __future__ import annotations

from simulation.store_level.runs import run_store_seed


def test_no_error_is_left_over() -> None:
    assert run_store_seed(733).violations == ()

"""A container with its log in S3 stopped while it was to be handed over: its taker waited for its store for ever."""

from __future__ import annotations

from simulation.store_level.runs import run_store_seed


def test_the_container_is_served_again() -> None:
    assert run_store_seed(1100).violations == ()

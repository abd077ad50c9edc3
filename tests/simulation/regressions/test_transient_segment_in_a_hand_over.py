"""A connection ended while its container was handed over. That was undone, and its transient segment stayed."""

from __future__ import annotations

from simulation.store_level.runs import run_store_seed


def test_transient_segments_end_with_their_connection() -> None:
    assert run_store_seed(4239).violations == ()

"""OPENED was told while the first entry behind a truncated gap was queued, and its run ended before it began."""

from __future__ import annotations

from simulation.runs import run_seed


def test_run_that_begins_again_is_told_as_a_range():
    assert run_seed(1331).violations == ()

"""DynamoDB did the write of an evicted segment's record when the segment was deleted: a crash brought it back."""

from __future__ import annotations

from simulation.store_level.runs import run_store_seed


def test_the_segment_stays_deleted() -> None:
    assert run_store_seed(1618).violations == ()

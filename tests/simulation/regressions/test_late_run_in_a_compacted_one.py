"""DynamoDB entered a run late that had been packed again and compacted since: bytes behind it were not found."""

from __future__ import annotations

from simulation.store_level.runs import run_store_seed


def test_every_byte_is_found() -> None:
    assert run_store_seed(3000).violations == ()

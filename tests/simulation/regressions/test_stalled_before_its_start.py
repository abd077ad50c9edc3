"""Seed 301: the disk of a store stalls before its journal has read its files, and the store is killed."""

from __future__ import annotations

from simulation.store_level.runs import run_store_seed


def test_a_disk_may_stall_before_the_journal_starts():
    assert run_store_seed(301).violations == ()

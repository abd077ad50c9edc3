"""A recovery took the truncation point from members alone, and served entries that its own replica no longer held.

The own replica was not a member. As a learner it had been told a later truncation point, and had skipped what was
before it.
"""

from __future__ import annotations

from simulation.runs import run_seed


def test_truncation_point_of_the_own_replica_counts():
    assert run_seed(370971382).violations == ()

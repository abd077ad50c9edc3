"""The simulator asked for more than a store can give, in three runs."""

from __future__ import annotations

import pytest

from simulation.runs import run_seed


@pytest.mark.parametrize(
    "seed",
    [
        4569,  # behind a damaged entry nothing can be replayed, even if only lost members knew that tier 2 has it
        14047,  # a commit that wrote no record does not prove that the one before it was durable
        31323,  # the answer of a member comes after the next owner has moved the entry to tier 2, and ended the log
    ],
)
def test_run_asks_only_for_what_is_possible(seed):
    assert run_seed(seed).violations == ()

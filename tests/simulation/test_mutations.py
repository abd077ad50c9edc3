"""Deliberate bugs: the frequent ones here, all of them in `make nightly`."""

from __future__ import annotations

import pytest

from simulation.mutations import MUTATIONS, applied, seeds_until_caught
from simulation.runs import run_seed

RARE = {"6", "16", "16b"}
"""These take hundreds of seeds."""

SEEDS_MAX = 150


@pytest.mark.parametrize("mutation", [one for one in MUTATIONS if one.name not in RARE], ids=lambda one: one.name)
def test_mutation_is_caught_by_its_checker(mutation):
    assert seeds_until_caught(mutation, SEEDS_MAX) is not None


def test_mutations_end_with_their_block():
    before = run_seed(0)
    with applied(MUTATIONS[0]):
        assert run_seed(0).violations
    assert run_seed(0) == before

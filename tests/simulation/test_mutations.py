"""Deliberate bugs, each from a seed near one that catches it. `make nightly` begins with the first seed."""

from __future__ import annotations

import pytest

from simulation.mutations import MUTATIONS, applied, seeds_until_caught
from simulation.runs import run_seed

SEEDS_MAX = 150

FIRST_SEEDS = {
    "4": 514,
    "6": 82,
    "6b": 1510,
    "7": 319,
    "8": 96,
    "9": 22,
    "11": 15,
    "13": 19,
    "14": 60,
    "15d": 600,
    "16": 77,
    "16b": 255,
    "17b": 142,
}
"""Seeds that catch them: from 0 on it takes longer. The nightly run finds new ones when runs have changed."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_mutation_is_caught_by_its_checker(mutation):
    assert seeds_until_caught(mutation, SEEDS_MAX, FIRST_SEEDS.get(mutation.name, 0)) is not None


def test_mutations_end_with_their_block():
    before = run_seed(0)
    with applied(MUTATIONS[0]):
        assert run_seed(0).violations
    assert run_seed(0) == before
